"""The tables of speeds in docs/engine.md: what is measured, the processes of other frameworks, and the Markdown."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks import frameworks, speedups
from benchmarks.frameworks import FOLDER, FRAMEWORKS, Framework, Peer, PeerFailed
from benchmarks.speedups import REFERENCE, Task, measure
from benchmarks.tables import ROOT, peers_table, replaced
from flbench.errors import UserError
from tests.benchmarks.tiny import silent


@pytest.fixture
def scripts() -> Any:
    """What the scripts of other frameworks share, as a module."""
    spec = importlib.util.spec_from_file_location("task", FOLDER / "task.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch, scripts: Any) -> None:
    """One framework averages in this process as its own server would; the environment of the other is missing."""

    class Averaging:
        def __init__(self, framework: Framework, folder: Path) -> None:
            if framework.name == "other":
                raise PeerFailed("uv is not installed")
            self.task, self.versions, self.done = scripts.Task(str(folder / "task.npz")), {"frame": "1.2"}, 0
            self.network = self.task.network()

        def round(self) -> None:
            total = [torch.zeros_like(leaf) for leaf in self.network.parameters()]
            for client, size in enumerate(self.task.sizes_N):
                local = self.task.network()
                local.load_state_dict(self.network.state_dict())
                optimizer = torch.optim.SGD(local.parameters(), lr=self.task.lr)
                for images, labels in self.task.batches(self.done, client):
                    optimizer.zero_grad()
                    nn.functional.cross_entropy(local(images), labels).backward()
                    optimizer.step()
                for leaf, own in zip(total, local.parameters(), strict=True):
                    leaf += own.detach() * size / sum(self.task.sizes_N)
            for leaf, average in zip(self.network.parameters(), total, strict=True):
                leaf.data = average
            self.done += 1

        def weights(self) -> list[Tensor]:
            assert self.done == self.task.rounds
            return list(self.network.parameters())

        def close(self) -> None:
            """Nothing to end."""

    frameworks = (Framework("frame", "frame", "frame.py"), Framework("other", "other", "other.py"))
    monkeypatch.setattr(speedups, "FRAMEWORKS", frameworks)
    monkeypatch.setattr(speedups, "Peer", Averaging)
    monkeypatch.setattr(speedups, "WORKLOADS", {"tiny": "model=mlp model.widths=[4] clients=3 E=2"})


def test_all_contestants_train_the_same_rounds(in_this_process: None) -> None:
    """Another program trains the task that flbench wrote to the same weights: batches, weights, rate and averages."""
    measured = measure(Task("tiny", "a tiny MLP", lr=0.5, turns=2, rounds=3), silent)
    rows = {row["name"]: row for row in measured["rows"]}
    names = ("flbench", "flbench, 10 runs as one stack, each", REFERENCE, "plain PyTorch, DataLoader", "frame 1.2")
    alone, fused, memory, loader, frame = (rows[name] for name in names)
    assert rows["other"] == {"name": "other", "missing": "uv is not installed"} and len(rows) == 6
    assert frame["difference"] < 1e-6 and frame["accuracies"] == alone["accuracies"] == fused["accuracies"][:1]
    assert [len(row["accuracies"]) for row in (alone, fused, memory, loader)] == [1, 10, 1, 1]
    assert all(len(row["seconds"]) == 2 for row in (alone, fused, memory, loader, frame))
    assert (measured["all_rounds"], measured["clients"], measured["reference"]) == (7, 3, REFERENCE)


def row(name: str, *seconds: float, **changes: Any) -> dict[str, Any]:
    return {"name": name, "seconds": list(seconds), "accuracies": [0.5], **changes}


MEASURED: dict[str, Any] = {
    "machine": {
        "date": "2026-11-22", "cpu": "a processor", "load_before": 0.1, "load_after": 0.2, "python": "3.11.7",
        "torch": "2.15.0",
    },
    "task": {
        "workload": "digits", "what": "digits, MLP", "data": "0123",
        "clients": 10, "local_steps": 10, "batch_size": 32, "rounds": 9, "all_rounds": 19, "reference": "plain",
        "rows": [
            row("plain", 0.02, 0.03, 0.04),
            row("flbench", 0.002, 0.0015, 0.004, accuracies=[0.96, 0.97]),
            row("frame 1.2", 0.2, 0.15, 0.4, versions={"frame": "1.2"}, difference=3.8e-5),
            {"name": "other", "missing": "uv is not installed"},
        ],
    },
}  # fmt: skip


def test_tables_have_medians_ranges_and_ratios_within_a_turn() -> None:
    text = peers_table(MEASURED)
    assert "(a processor, load 0.1 to 0.2, Python 3.11.7, torch" in " ".join(text.split())
    assert (
        "**digits, MLP**, 10 clients, E=10, batch 32 (n=3 turns of 9 rounds):\n\n"
        "| trained by | ms a round | times as fast as plain | accuracy in % after 19 rounds |\n"
        "| --- | ---: | ---: | ---: |\n"
        "| flbench | 2.00 (1.50 to 4.00) | 10.0 (10.0 to 20.0) | 96.5 (96.0 to 97.0) |\n"
        "| plain | 30.0 (20.0 to 40.0) | 1 | 50.0 |\n"
        "| frame 1.2 | 200 (150 to 400) | 0.100 (0.100 to 0.200) | 50.0 |\n"
        "| other | not measured: uv is not installed | – | – |\n\n"
        "The other frameworks train on flbench's batches from the same initial weights. After 19 rounds"
    ) in text
    assert "by up to 4e-05 (frame 1.2): rounding errors" in " ".join(text.split())
    assert max(map(len, (line for line in text.splitlines() if not line.startswith(("|", "**"))))) <= 132


#: The marks of the script in a page.
BEGIN, END = "<!-- begin: benchmarks/speedups.py -->", "<!-- end: benchmarks/speedups.py -->"


def test_tables_are_replaced_between_the_marks_only(tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    page.write_text(f"# Title\n\n{BEGIN}\nold\n{END}\n\nrest\n")
    assert replaced(page, "speedups", "new\n\nmore") == f"# Title\n\n{BEGIN}\nnew\n\nmore\n{END}\n\nrest\n"
    page.write_text(f"# Title\n{BEGIN}\n")
    with pytest.raises(UserError, match=r"^README\.md has no lines"):
        replaced(page, "speedups", "new")


def test_the_page_has_the_speeds_of_the_committed_measurement() -> None:
    page = ROOT / "docs/engine.md"
    measured = json.loads((ROOT / "benchmarks/speedups.json").read_text(encoding="utf-8"))
    assert replaced(page, "speedups", peers_table(measured)) == page.read_text(encoding="utf-8")


@pytest.mark.parametrize("framework", FRAMEWORKS, ids=lambda framework: framework.package)
def test_scripts_pin_their_packages(framework: Framework) -> None:
    text = (FOLDER / framework.script).read_text()
    (listed,) = re.findall(r"^# dependencies = (\[.*\])$", text, flags=re.MULTILINE)
    packages = json.loads(listed)
    assert all("==" in package for package in packages)
    assert re.split(r"[\[=]", packages[0])[0] == framework.package


#: A process that speaks the scripts' protocol for two rounds, and fails in the second if it is asked to.
SPEAKS = """
import json, sys, numpy
print(json.dumps({"frame": "1.2"}), flush=True)
for round in range(2):
    if not sys.stdin.readline():
        sys.exit("flbench is gone")
    if round == 1 and FAILS:
        sys.exit("out of luck")
    print("done", flush=True)
numpy.savez(sys.argv[2], weight_1=[2.0], weight_0=[1.0])
"""


@pytest.fixture
def frame(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Framework:
    monkeypatch.setattr(frameworks, "FOLDER", tmp_path)
    monkeypatch.setattr(frameworks, "interpreter_of", lambda _: sys.executable)
    (tmp_path / "frame.py").write_text(SPEAKS.replace("FAILS", "False"))
    return Framework("frame", "frame", "frame.py")


def test_a_peer_trains_a_round_a_call_and_leaves_its_weights(frame: Framework, tmp_path: Path) -> None:
    peer = Peer(frame, tmp_path)
    assert peer.versions == {"frame": "1.2"}
    peer.round()
    peer.round()
    assert [weight.tolist() for weight in peer.weights()] == [[1.0], [2.0]]
    peer.close()  # closing twice is fine


def test_a_peer_that_fails_says_why(frame: Framework, tmp_path: Path) -> None:
    (tmp_path / "frame.py").write_text(SPEAKS.replace("FAILS", "True"))
    peer = Peer(frame, tmp_path)
    peer.round()
    with pytest.raises(PeerFailed, match="frame ended: out of luck"):
        peer.round()
    peer.close()
    (tmp_path / "frame.py").write_text("raise SystemExit('no such package')")
    with pytest.raises(PeerFailed, match="frame ended: no such package"):
        Peer(frame, tmp_path)


def test_a_peer_that_hangs_is_killed(frame: Framework, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frameworks, "PATIENCE", 0.1)
    monkeypatch.setattr(frameworks, "GRACE", 0.1)
    (tmp_path / "frame.py").write_text("import time; time.sleep(60)")
    with pytest.raises(PeerFailed, match="frame did not answer in 0 s"):
        Peer(frame, tmp_path)


#: A ``uv`` that logs how it is asked for environments, and cannot make them offline.
NEEDS_NETWORK = '[ "$1" = sync ] && { echo "made $*" >> "$0.log"; [ "$3" != --offline ]; exit; }\necho /bin/python'


def test_environments_come_from_uv(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    uv = tmp_path / "uv"
    monkeypatch.setattr(frameworks.shutil, "which", lambda _: str(uv))
    uv.write_text(f"#!/bin/sh\n{NEEDS_NETWORK}\n")
    uv.chmod(0o755)
    assert frameworks.interpreter_of(Path("frame.py")) == "/bin/python"
    assert (tmp_path / "uv.log").read_text() == (
        "made sync --quiet --offline --script frame.py\nmade sync --quiet --script frame.py\n"
    )
    uv.write_text("#!/bin/sh\necho 'error: no network' >&2\nexit 1\n")
    with pytest.raises(PeerFailed, match="uv cannot make its environment: error: no network"):
        frameworks.interpreter_of(Path("frame.py"))
    monkeypatch.setattr(frameworks.shutil, "which", lambda _: None)
    with pytest.raises(PeerFailed, match="uv is not installed"):
        frameworks.interpreter_of(Path("frame.py"))


def run_script(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["speedups", *arguments])
    speedups.main()


@pytest.fixture
def checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A checkout whose measurement is ``MEASURED``."""
    for folder in ("docs", "benchmarks"):
        (tmp_path / folder).mkdir()
    (tmp_path / "docs/engine.md").write_text(f"# Title\n{BEGIN}\nold\n{END}\n")
    monkeypatch.setattr(speedups, "ROOT", tmp_path)
    monkeypatch.setattr(speedups, "measure", lambda task, note: MEASURED["task"])
    return tmp_path


def test_a_complete_measurement_is_written_and_printed(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = {**MEASURED["task"], "rows": MEASURED["task"]["rows"][:3]}
    monkeypatch.setattr(speedups, "measure", lambda task, note: whole)
    run_script(monkeypatch)
    printed = capsys.readouterr().out
    stored = json.loads((checkout / "benchmarks/speedups.json").read_text())
    assert stored["task"] == whole and set(stored) == {"schema", "machine", "task"}
    assert (checkout / "docs/engine.md").read_text() == f"# Title\n{BEGIN}\n{printed}{END}\n"
    run_script(monkeypatch, "--json")
    assert json.loads(capsys.readouterr().out)["task"] == whole


def test_an_incomplete_measurement_is_only_printed(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run_script(monkeypatch)
    out, errors = capsys.readouterr()
    assert ended.value.code == 2 and "| other | not measured: uv is not installed | – | – |" in out
    assert "docs/engine.md: unchanged, because the measurement lacks other (uv is not installed)" in errors
    assert "old" in (checkout / "docs/engine.md").read_text() and not (checkout / "benchmarks/speedups.json").exists()


def test_a_page_without_a_place_is_refused_before_anything_is_measured(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (checkout / "docs/engine.md").write_text("# Title\n")
    monkeypatch.setattr(speedups, "measure", lambda task, note: pytest.fail("measured"))
    with pytest.raises(SystemExit) as ended:
        run_script(monkeypatch)
    assert ended.value.code == 2 and "engine.md has no lines" in capsys.readouterr().err
