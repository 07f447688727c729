"""``flbench doctor``: check what works on this machine, and say how to fix the rest."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.text import Text

from flbench.choices import DEFAULT_STORE
from flbench.cli.boundary import print_json
from flbench.cli.data import sources
from flbench.cli.numbers import file_size
from flbench.cli.options import DataOption, JsonOption, StoreOption
from flbench.cli.screen import streamed_table, wide_console
from flbench.errors import UserError
from flbench.installation import install_extra, reinstall, summary
from flbench.launch.resources import usable_cores
from flbench.messages import counted
from flbench.registry import DATASETS
from flbench.store import Store, files
from flbench.tracking.sink import NotTracked
from flbench.tracking.trackers import TensorBoard, choose

#: Seconds that a command of the system may take to answer.
PATIENCE = 20


@dataclass(frozen=True)
class Finding:
    """The result of one check: ``broken`` is needed and does not work; ``absent`` is missing and not needed."""

    name: str
    state: Literal["ok", "absent", "broken"]
    found: str
    advice: str = ""


def doctor(
    store: StoreOption = DEFAULT_STORE,
    data: DataOption = None,
    as_json: JsonOption = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Also list missing data sets.")] = False,
) -> None:
    """Check python, torch, GPU, SLURM, W&B, TensorBoard, store and data; exit code 1 if something needed is broken.

    Example: flbench doctor --verbose
    """
    findings = []
    for finding in _findings(store, data):
        findings.append(finding)
        if not as_json and (verbose or finding.state != "absent" or not finding.name.startswith("data: ")):
            _print(finding)
    broken = any(finding.state == "broken" for finding in findings)
    if as_json:
        print_json({"schema": 1, "ok": not broken, "findings": [asdict(finding) for finding in findings]})
    raise typer.Exit(int(broken))


def _findings(store: Path, data: Path | None) -> Iterator[Finding]:
    """Yield the result of each check as soon as it is there: torch takes seconds."""
    yield Finding("flbench", "ok", summary())
    yield Finding("python", "ok", f"{platform.python_version()} ({sys.executable}), {platform.platform()}")
    yield _torch()
    yield Finding("cores", "ok", f"{usable_cores()} usable of {os.cpu_count()}; one worker a core by default")
    yield _gpu()
    yield _store(store)
    yield from _data(data)
    yield _slurm()
    yield _wandb()
    yield _tensorboard()


def _print(finding: Finding) -> None:
    colors = {"ok": "green", "absent": "yellow", "broken": "red"}
    text = Text(finding.found)
    if finding.advice:
        text.append(f"\n{finding.advice}", style="dim")
    row = streamed_table([max(len("tensorboard"), *(len(f"data: {name}") for name in DATASETS.classes)), len("broken")])
    row.add_row(finding.name, Text(finding.state, style=colors[finding.state]), text)
    wide_console().print(row)
    sys.stdout.flush()


def _torch() -> Finding:
    advice = f"install it again: {reinstall('torch')}"
    try:
        began = time.monotonic()
        import torch

        product = float((torch.eye(2) @ torch.ones(2, 2)).sum())
    except Exception as error:
        return Finding("torch", "broken", f"{type(error).__name__}: {error}", advice)
    if product != 4:
        return Finding("torch", "broken", f"a 2x2 product gave {product}", advice)
    return Finding("torch", "ok", f"{torch.__version__}, imported in {time.monotonic() - began:.1f} s")


def _gpu() -> Finding:
    import torch

    mask = os.environ.get("CUDA_VISIBLE_DEVICES")
    masked = f" (CUDA_VISIBLE_DEVICES={mask})" if mask is not None else ""
    if torch.cuda.is_available():
        names = ", ".join(torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count()))
        return Finding("gpu", "ok", names + masked, "use it by `--set resources.gpus=1`, or 0.5 for two runs on one")
    if torch.backends.mps.is_available():
        advice = (
            "`flbench run --device mps` uses it, for training in fp32; untested: no Mac has run it "
            "(`flbench docs install`)"
        )
        return Finding("gpu", "ok", "Apple GPU (MPS)", advice)
    if shutil.which("nvidia-smi") is None:
        return Finding("gpu", "absent", f"no NVIDIA driver{masked}; everything runs on the CPU")
    advice = "check CUDA_VISIBLE_DEVICES, and that this torch is built for the driver's CUDA (see `nvidia-smi`)"
    return Finding("gpu", "absent", f"nvidia-smi is there, torch {torch.__version__} sees no GPU{masked}", advice)


def _store(root: Path) -> Finding:
    """Try in the store's folder what the store relies on."""
    if root.exists() and not root.is_dir():
        return Finding("store", "broken", f"{root} is not a folder", "choose another --store")
    if not Store.exists(root):
        parent = next(folder for folder in (root, *root.absolute().parents) if folder.is_dir())
        found, place = f"{root} does not exist yet; `flbench sweep` creates it", parent
    else:
        try:
            opened = Store(root, create=False)
        except UserError as error:
            return Finding("store", "broken", str(error))
        found, place = (
            f"{root}: {counted(len(opened.sweep_dirs()), 'sweep')}, {counted(sum(1 for _ in opened.run_ids()), 'run')}",
            root,
        )
    began = time.monotonic()
    if problem := _disk_problem(place):
        advice = (
            "choose another file system by --store DIR or $FLBENCH_STORE; "
            "`flbench docs cluster` lists what a store needs"
        )
        return Finding("store", "broken", f"{place}: {problem}", advice)
    cost = (time.monotonic() - began) * 1000
    free = shutil.disk_usage(place).free
    found = f"{found}; fsync, renaming, exclusive hard links and dates work ({cost:.0f} ms), {file_size(free)} free"
    if free < 10**9:
        return Finding("store", "broken", found, "make space, or choose another --store")
    return Finding("store", "ok", found)


def _disk_problem(folder: Path) -> str:
    """Return what a store needs and does not work in a folder; '' if everything works."""
    first, second = files.temporary(folder / "doctor"), files.temporary(folder / "doctor")
    what = "writing a file with fsync"
    try:
        files.discard(files.stage(first, lambda file: file.write(b"1"), sync=True))
        what = "renaming"
        files.replace(first, b"1")
        what = "a hard link"
        made = files.publish(second, b"1")
        what = "a hard link that does not overwrite"
        kept = not files.publish(second, b"2") and second.read_bytes() == b"1"
        back = first.stat().st_mtime - second.stat().st_mtime
    except OSError as error:
        return f"{what} fails: {error.strerror}"
    finally:
        first.unlink(missing_ok=True)
        second.unlink(missing_ok=True)
    if back > 0:
        return f"a file is dated {back:.1f} s before one that was written earlier, so that ages of files are wrong"
    return "" if made and kept else "a hard link overwrote a file"


def _data(root: Path | None) -> list[Finding]:
    from flbench.data.datasets import data_root  # imports numpy, which help does not need

    findings = [Finding("data", "ok", f"looked for in {data_root(root)}")]
    for name, source in sources(root).items():
        if source is None:
            findings.append(Finding(f"data: {name}", "absent", "no files", f"flbench data download {name}"))
        else:
            findings.append(Finding(f"data: {name}", "ok", f"{source.layout.title} in {source.folder}"))
    return findings


def _slurm() -> Finding:
    if shutil.which("sbatch") is None:
        return Finding("slurm", "absent", "no sbatch here; needed for cluster sweeps only")
    try:
        answer = subprocess.run(["sinfo", "--version"], capture_output=True, text=True, timeout=PATIENCE, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        return Finding("slurm", "absent", f"sbatch is there, `sinfo --version` fails: {error}")
    if answer.returncode:
        says = answer.stderr.strip().rpartition("\n")[2] or f"exit status {answer.returncode}"
        return Finding("slurm", "absent", f"sbatch is there, `sinfo --version` fails: {says}")
    return Finding("slurm", "ok", answer.stdout.strip())


def _wandb() -> Finding:
    try:
        installed = version("wandb")
    except PackageNotFoundError:
        return Finding("wandb", "absent", "not installed; needed only to mirror runs to Weights & Biases")
    try:
        mode, server = choose("auto")
    except NotTracked as off:
        return Finding("wandb", "absent", f"{installed}; sweeps are not mirrored", str(off))
    return Finding("wandb", "ok", f"{installed}, server {server}; `wandb: {{mode: auto}}` is {mode}")


def _tensorboard() -> Finding:
    try:
        installed = version(TensorBoard.package)
    except PackageNotFoundError:
        advice = f"install it: {install_extra(TensorBoard.extra)}"
        return Finding("tensorboard", "absent", "not installed; needed only to mirror runs to TensorBoard", advice)
    return Finding("tensorboard", "ok", f"{installed}; `track: tensorboard:DIR` mirrors runs to it")
