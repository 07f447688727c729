"""The recipes of containers/ agree, what they copy exists, and their script works in an empty environment."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "containers"


def instructions() -> list[tuple[str, str]]:
    """Return the instructions of the Dockerfile in their order, with their arguments as one line."""
    text = re.sub(r"^#.*\n", "", (FOLDER / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in text.splitlines() if line.strip())]


def sections() -> dict[str, str]:
    """Return the sections of the recipe for Apptainer by name; "" is its head."""
    text = re.sub(r"^#.*\n", "", (FOLDER / "flbench.def").read_text(), flags=re.MULTILINE)
    head, *parts = re.split(r"^%(\w+)\n", text, flags=re.MULTILINE)
    return {"": head, **dict(zip(parts[::2], parts[1::2], strict=True))}


def values(name: str) -> list[str]:
    return [rest for found, rest in instructions() if found == name]


def test_the_dockerfile() -> None:
    """It begins with a base image that has a version, installs before it gives up root, and starts flbench itself."""
    names = [name for name, _ in instructions()]
    assert {*names} <= {"FROM", "ARG", "COPY", "RUN", "ENV", "USER", "WORKDIR", "ENTRYPOINT", "CMD"}
    assert names[0] == "FROM" and re.fullmatch(r"python:\d\.\d+-slim-\w+", values("FROM")[0])
    assert max(at for at, name in enumerate(names) if name == "RUN") < names.index("USER")
    assert values("USER") == ["nobody"] and values("ENTRYPOINT") == ['["flbench"]']
    made = {path for run in values("RUN") if run.startswith("mkdir") for path in run.split() if path.startswith("/")}
    assert {value for value in re.findall(r"=(/\w+)", values("ENV")[0]) if value != "/tmp"} < made
    assert {*values("WORKDIR")} < made


def test_both_recipes_install_the_same_in_the_same_way() -> None:
    def_ = sections()
    assert {*def_} <= {"", "arguments", "files", "post", "environment", "runscript", "test", "help"}
    assert "export PYTHONNOUSERSITE=1" in def_["environment"], "the home is the host's"
    assert f"From: {values('FROM')[0]}\n" in def_[""]
    assert values("ARG") == [def_["arguments"].strip()]
    *sources, target = values("COPY")[0].split()
    copied = [line.split() for line in def_["files"].strip().splitlines()]
    assert [source for source, _ in copied] == sources and all(to.startswith(target) for _, to in copied)
    install = values("RUN")[0].replace('"$TORCH"', "{{ TORCH }}")
    assert install.split(" && ") == [line.strip() for line in def_["post"].strip().splitlines()]
    for source in sources:
        assert source == "dist/*.tar.gz" or os.access(ROOT / source, os.X_OK), source
    kept = (FOLDER / "Dockerfile.dockerignore").read_text().split()
    assert kept == ["*", *(f"!{source}" for source in sources)]


def test_the_script_asks_for_one_sdist(tmp_path: Path) -> None:
    shutil.copy(FOLDER / "install", tmp_path)
    for name in (None, "flbench-0.1.0.tar.gz"):
        if name is not None:
            (tmp_path / name).touch()
            (tmp_path / "flbench-0.2.0.tar.gz").touch()
        done = subprocess.run([tmp_path / "install"], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (2, "expected one sdist in dist/: rm -rf dist && uv build --sdist\n")


@pytest.mark.nightly
@pytest.mark.skipif(shutil.which("uv") is None, reason="uv builds the sdist")
def test_the_script_works_in_an_empty_environment() -> None:
    """With the torch of PyPI; in a folder on the disk, beside uv's cache, since the environment has 6 GB."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        subprocess.run(["uv", "build", "--quiet", "--sdist", "--out-dir", folder], cwd=ROOT, check=True)
        subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
        shutil.copy(FOLDER / "install", folder)
        environment = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
        environment |= {"PATH": f"{folder}/venv/bin:/usr/bin:/bin", "TORCH": ""}
        subprocess.run([folder / "install"], env=environment, check=True)
        command = [folder / "venv/bin/flbench", "run", "rounds=5"]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        assert "round 5, acc" in done.stdout, done.stdout + done.stderr
