from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flbench.cli import app
from flbench.store import Lease, Store, encode_plan
from tests.faults.stub import experiments
from tests.start_up import HEAVY, heavy_imports

#: The folder of `flbench`.
SCRIPTS = Path(sys.executable).parent


def bash(*words: str) -> list[str]:
    """What bash is offered for the last of the words, as its completion function asks."""
    variables = {"_FLBENCH_COMPLETE": "complete_bash", "COMP_WORDS": "\n".join(("flbench", *words))}
    result = CliRunner().invoke(app, [], prog_name="flbench", env={**variables, "COMP_CWORD": str(len(words))})
    assert result.exit_code == 0, result.output
    return result.stdout.split()


def zsh(line: str) -> str:
    variables = {"_FLBENCH_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": line}
    return CliRunner().invoke(app, [], prog_name="flbench", env=variables).stdout.strip()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with sweep files, at different depths."""
    for name in [
        "sweeps/a.yaml",
        "sweeps/b.yml",
        "sweeps/notes.txt",
        "sweeps/paper/t.yaml",
        ".hidden/h.yaml",
        "x.yaml",
    ]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FLBENCH_STORE", raising=False)
    return tmp_path


@pytest.fixture
def store(here: Path) -> Store:
    """Two plans of one sweep, one of another, and two runs that were begun."""
    store = Store(here / "runs")
    for name, digits in (("toy", "aaaa"), ("toy", "abbb"), ("other", "cccc")):
        directory = store.sweeps / name / digits
        directory.mkdir(parents=True)
        (directory / "plan.jsonl").write_bytes(encode_plan(experiments(2)))
    for experiment in experiments(2):
        assert store.claim(experiment, Lease.here()) is not None
    return store


def test_commands_and_choices() -> None:
    assert bash("sw") == ["sweep"]
    assert (bash("show", "n"), bash("show", "f"), bash("show", "met")) == (
        ["norms"],
        ["figures"],
        ["methods", "metrics"],
    )
    assert bash("sweep", "--dr") == ["--dry-run"]


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("", ["x.yaml", "sweeps/a.yaml", "sweeps/b.yml"]),
        ("sw", ["sweeps/a.yaml", "sweeps/b.yml"]),
        ("sweeps/", ["sweeps/a.yaml", "sweeps/b.yml", "sweeps/paper/t.yaml"]),
        ("sweeps/p", ["sweeps/paper/t.yaml"]),
        (".h", [".hidden/h.yaml"]),
        ("none/", []),
        ("quick", ["quickstart"]),  # it comes with flbench
        ("paper/table0", [f"paper/table0{number}" for number in range(1, 7)]),
    ],
)
def test_sweep_files(here: Path, typed: str, offered: list[str]) -> None:
    assert bash("sweep", typed) == offered
    assert bash("sweep", f"{here}/x") == [f"{here}/x.yaml"]


def test_sweeps_of_the_store(store: Store) -> None:
    assert bash("status", "") == ["other", "toy", "x.yaml", "sweeps/a.yaml", "sweeps/b.yml"]
    assert bash("status", "to") == ["toy"]
    assert bash("status", "toy/") == ["toy/aaaa", "toy/abbb"]


def test_runs_by_the_beginning_of_their_ids(store: Store) -> None:
    first, second = (experiment.run_id for experiment in experiments(2))
    assert first[:2] != second[:2]
    for command in ("logs", "cancel", "retry"):
        assert bash(command, first[:2]) == [first]
    assert bash("logs", first, second[:5]) == [second], "another one behind it"
    assert bash("logs", first[0]) == [], "one digit says nothing yet"


def test_the_store_that_is_named_counts(store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert bash("logs", "--store", "sweeps", "to") == [], "a folder that is no store"
    monkeypatch.chdir(tmp_path / "empty")
    assert bash("status", "to") == [], "no store here, and none is made"
    assert not Path("runs").exists()
    assert bash("status", "--store", str(store.root), "to") == ["toy"]
    monkeypatch.setenv("FLBENCH_STORE", str(store.root))
    assert bash("status", "to") == ["toy"]


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("run norm = ln-s", "ln-static"),
        ("run lo", "local_steps= local_epochs="),
        ("run rounds", "rounds=200"),
        ("run norm = ln method = sca", "scaffold"),
        ("run E", "E=10"),
        ("run kind = c", "centralized"),
        ("run prec", "precision=fp32 precision=tf32 precision=bf16 precision=fp64"),
        ("run bia", "bias=false"),
        ("sweep x.yaml --only method=sca", "method=scaffold"),
        ("show partition partition = dir", "dirichlet:"),
        # Fields are those of the kind.
        ("run kind = sharpness normalized=me", "normalized=mean-last normalized=mean-middle"),
        ("run kind = rank normalized = b", "bn-rms bn"),
        ("run kind = rank rounds", "rounds=32"),
        ("run kind = rank E", ""),
        ("run kind = deep ini", "init=torch init=he init=glorot"),
    ],
)
def test_fields_and_components_in_bash_which_takes_them_apart(typed: str, offered: str) -> None:
    assert bash(*typed.split()) == offered.split()


@pytest.mark.parametrize(
    ("typed", "among", "not_among"),
    [
        ("run no", "norm=ln norm=none", "normalized="),
        ("run norm =", "none ln", ""),
        ("run norm = ln ", "rounds=", "norm="),
        ("sweep x.yaml --only norm", "norm= normalized=", ""),  # a sweep may hold all kinds
        ("show partition ", "clients= dataset=", ""),
        ("show partitions ", "dirichlet iid", ""),
    ],
)
def test_many_fields_are_offered(typed: str, among: str, not_among: str) -> None:
    found = {*bash(*typed.split(" "))}
    assert {*among.split()} <= found and not {*not_among.split()} & found


def test_zsh_gets_whole_words() -> None:
    assert zsh("flbench run norm=ln-s") == """_arguments '*: :(("norm=ln-static"))'"""
    assert zsh("flbench run partition=dir") == r"""_arguments '*: :(("partition=dirichlet\\:"))'"""
    assert zsh("flbench run norm=ln norm=") == "_files", "it is given"
    assert zsh("flbench run nothing=") == "_files"


@pytest.mark.slow
def test_tab_imports_nothing_heavy(store: Store) -> None:
    """Every Tab starts a process of its own."""
    program = """
import os
from flbench.cli import app
for words in ("flbench logs t", "flbench run no", "flbench sweep --se"):
    os.environ["COMP_WORDS"] = words
    try:
        app(prog_name="flbench")
    except SystemExit:
        pass
"""
    asked = {"_FLBENCH_COMPLETE": "complete_bash", "COMP_WORDS": "", "COMP_CWORD": "2"}
    heavy, offered = heavy_imports(program, (*HEAVY, "numpy"), asked)
    assert {"toy", "norm=ln", "--set"} <= {*offered.split()} and not heavy


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_itself_takes_the_script(store: Store) -> None:
    """The installed script in a real bash, which fills COMPREPLY as at a Tab."""
    script = """
        eval "$(_FLBENCH_COMPLETE=source_bash flbench)"
        COMP_WORDS=(flbench run norm = ln-s); COMP_CWORD=4; _flbench_completion flbench; echo "${COMPREPLY[*]}"
        COMP_WORDS=(flbench status to); COMP_CWORD=2; _flbench_completion flbench; echo "${COMPREPLY[*]}"
    """
    environment = {**os.environ, "PATH": f"{SCRIPTS}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["ln-static", "toy"]
