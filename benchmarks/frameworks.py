"""Other frameworks that train one of flbench's experiments, each in a process and an environment of its own.

A peer is a script in ``benchmarks/peers``. Its first lines name its packages and their versions, from
which uv makes the environment (inline script metadata, PEP 723). Peers train on the batches that flbench draws, from
the same initial weights, so that after the last round their weights differ from flbench's by rounding only.

Shape suffixes: R rounds, N clients, E local steps, B batch, M samples.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import torch
from torch import Tensor

from flbench.data.arrays import Data
from flbench.engine.federated import FederatedTrainer
from flbench.errors import UserError

#: The scripts.
FOLDER = Path(__file__).parent / "peers"

#: Seconds after which a peer that does not answer has failed; on a busy machine Ray takes a minute to start.
PATIENCE = 300.0

#: Seconds that a peer has to end by itself; Ray stops its processes in them.
GRACE = 60.0


@dataclass(frozen=True)
class Framework:
    """A framework: what reports call it, its package, and its script in ``FOLDER``."""

    name: str
    package: str
    script: str


FRAMEWORKS = (
    Framework("pfl-research", "pfl", "run_pfl.py"),
    Framework("fluke", "fluke-fl", "run_fluke.py"),
    Framework("Flower (simulation)", "flwr", "run_flower.py"),
)


class PeerFailed(UserError):
    """A peer cannot be started, or it failed; the message says why."""


def write_task(folder: Path, trainer: FederatedTrainer, data: Data, *, rounds: int) -> None:
    """Write ``task.npz``, which defines the training of a multi-layer perceptron from its initial weights.

    Args:
        folder: an existing folder.
        trainer: flbench's own training of it, before its first round.
        data: its data set.
        rounds: the number of rounds.
    """
    run = trainer.run
    images = data.train.images.reshape(len(data.train.images), -1).astype(np.float32)
    rows = [[run.batch(client, round).rows_EB for client in range(len(run.rows))] for round in range(rounds)]
    np.savez(
        folder / "task.npz",
        images_M=images / np.float32(data.white),
        labels_M=data.train.labels.astype(np.int64),
        rows_RNEB=np.array(rows),
        sizes_N=np.array([len(own) for own in run.rows]),
        classes=np.array(data.classes),
        lr=np.array(run.setup.sgd.lr_in(0)),
        **{f"weight_{i}": leaf.numpy() for i, leaf in enumerate(trainer.x.values())},
    )


def interpreter_of(script: Path) -> str:
    """Return the Python of a script's environment. uv makes it if necessary, if possible without the network.

    Raises:
        PeerFailed: uv is not installed, or cannot make the environment.
    """
    uv = shutil.which("uv")
    if uv is None:
        raise PeerFailed("uv is not installed")
    for network in (["--offline"], []):
        made = subprocess.run([uv, "sync", "--quiet", *network, "--script", script], capture_output=True, text=True)
        if made.returncode == 0:
            found = subprocess.run([uv, "python", "find", "--script", script], capture_output=True, text=True)
            return found.stdout.strip()
    raise PeerFailed(f"uv cannot make its environment: {_last_line(made.stderr)}")


class Peer:
    """A process that trains the ``task.npz`` of a folder, one round a call.

    Attributes:
        versions: of Python and of its packages.
    """

    def __init__(self, framework: Framework, folder: Path) -> None:
        """Start the process and wait until it is ready for the first round.

        Raises:
            PeerFailed: its environment cannot be made, or it ended.
        """
        self._name = framework.name
        self._weights, self._errors = folder / f"{framework.package}.npz", folder / f"{framework.package}.txt"
        script = FOLDER / framework.script
        command = [interpreter_of(script), str(script), str(folder / "task.npz"), str(self._weights)]
        caching = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(command, stderr=errors, env=caching, start_new_session=True, **pipes)
        self._stdin, self._stdout = cast(IO[str], self._process.stdin), cast(IO[str], self._process.stdout)
        try:
            self.versions: Mapping[str, str] = json.loads(self._answer())
        except BaseException:
            self.close()
            raise

    def round(self) -> None:
        """Train one round; raises ``PeerFailed`` if the process ended or does not answer."""
        with suppress(BrokenPipeError):  # then there is no answer either
            self._stdin.write("\n")
            self._stdin.flush()
        self._answer()

    def weights(self) -> Sequence[Tensor]:
        """Return the weights after the task's last round, layer by layer; wait until the process has written them.

        Raises:
            PeerFailed: it ended without them.
        """
        self.close()
        if self._process.returncode != 0:
            raise self._ended()
        saved = np.load(self._weights)
        return [torch.from_numpy(saved[name]) for name in sorted(saved)]

    def close(self) -> None:
        """Wait until the process ends, which it does without a next round; kill it if it takes too long."""
        with suppress(BrokenPipeError):
            self._stdin.close()
        try:
            self._process.wait(GRACE)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _answer(self) -> str:
        """Return the next line that it writes."""
        answered, _, _ = select.select([self._stdout], [], [], PATIENCE)
        if not answered:
            raise PeerFailed(f"{self._name} did not answer in {PATIENCE:.0f} s")
        if line := self._stdout.readline():
            return line
        raise self._ended()

    def _ended(self) -> PeerFailed:
        why = _last_line(self._errors.read_text(errors="replace"))
        return PeerFailed(f"{self._name} ended: {why}")


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2].strip() or "no message"
