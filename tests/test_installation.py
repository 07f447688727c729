"""What comes with flbench is found in a clone and in a wheel, and hints name the installer that is in use."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flbench import installation
from flbench.cli import app
from flbench.errors import UserError
from flbench.sweeps import bundled_files, load_sweep

ROOT = Path(__file__).parents[1]
NAMES = sorted(path.relative_to(ROOT / "sweeps").with_suffix("").as_posix() for path in ROOT.glob("sweeps/**/*.yaml"))
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/**/*.md"))


class Metadata:
    """A distribution that an installer has left behind."""

    version = "0.1.0"
    requires = ("numba>=0.64", "torch>=2.11", "datasets>=5; extra == 'hf'", 'a>=1 ; extra == "two"', "b; extra=='two'")

    def __init__(self, installer: str | None) -> None:
        self.installer = installer

    def read_text(self, name: str) -> str | None:
        assert name == "INSTALLER"
        return self.installer


PIP = f"{sys.executable} -m pip install"
UV = f"uv pip install --python {sys.executable}"


@pytest.mark.parametrize(
    ("installer", "clone", "extra", "again"),
    [
        ("uv\n", True, "uv sync --extra hf", "uv sync --reinstall-package torch"),
        ("uv\n", False, f"{UV} 'datasets>=5'", f"{UV} --reinstall 'torch>=2.11'"),
        ("pip\n", True, f"{PIP} 'datasets>=5'", f"{PIP} --force-reinstall 'torch>=2.11'"),
        (None, False, f"{PIP} 'datasets>=5'", f"{PIP} --force-reinstall 'torch>=2.11'"),
    ],
)
def test_hints_name_the_installer(
    monkeypatch: pytest.MonkeyPatch, installer: str | None, clone: bool, extra: str, again: str
) -> None:
    monkeypatch.setattr(installation, "distribution", lambda name: Metadata(installer))
    monkeypatch.setattr(installation, "is_checkout", lambda: clone)
    assert (installation.install_extra("hf"), installation.reinstall("torch")) == (extra, again)
    assert installation._requirements("two") == ["a>=1", "b"]


def test_the_extras_of_this_installation_have_packages() -> None:
    for extra in ("curvature", "hf", "pretrained", "tensorboard"):
        assert installation._requirements(extra), extra
    assert any(text.startswith("torch>=") for text in installation._requirements(""))


def test_a_bundled_sweep_is_found_by_its_name_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert sorted(bundled_files()) == NAMES
    assert (load_sweep("quickstart").spelled, load_sweep("paper/table01").bundled_as) == ("quickstart", "paper/table01")
    Path("sweeps").mkdir()
    Path("sweeps/quickstart.yaml").write_text("version: 1\nname: own\n")
    own = load_sweep("quickstart")
    assert (own.name, own.spelled, own.bundled_as) == ("own", "sweeps/quickstart.yaml", None), "the user's comes first"


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("quickstrat", "quickstrat: no such file: expected a sweep file (YAML); did you mean 'quickstart'? "),
        ("sweeps/quickstart.yaml", "(YAML); did you mean 'quickstart'? flbench has quickstart, "),
        ("tables01", "did you mean 'paper/table01'? "),
        ("nowhere/mine.yml", "(flbench show sweeps lists all)"),
    ],
)
def test_an_unknown_sweep_names_those_of_flbench_the_nearest_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: str, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    error = CliRunner().invoke(app, ["sweep", typed]).exception
    assert isinstance(error, UserError) and says in str(error)


def test_sweeps_are_listed_and_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    source = ROOT / "sweeps/quickstart.yaml"
    for what in ("sweep", "sweeps"):
        assert CliRunner().invoke(app, ["show", what, "quickstart"]).stdout == source.read_text()
    found = json.loads(CliRunner().invoke(app, ["show", "sweep", "quickstart", "--json"]).stdout)
    assert (found["runs"], found["cells"], found["text"]) == (60, 12, source.read_text())
    assert "effect of normalizations" in found["about"]
    Path("sweeps").mkdir()
    Path("sweeps/smoke.yaml").write_text("version: 1\nname: own\n")
    monkeypatch.setattr("flbench.cli.component_tables.bundled_files", lambda: {"smoke": source, "skew": source})
    files = [row["file"] for row in json.loads(CliRunner().invoke(app, ["show", "sweeps", "--json"]).stdout)]
    assert files == ["sweeps/smoke.yaml", "skew"]


def test_pages_are_listed_and_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = json.loads(CliRunner().invoke(app, ["docs", "--json"]).stdout)
    names = [row["page"] for row in rows]
    assert names[0] == "README" and sorted(f"docs/{name}.md" for name in names[4:]) == PAGES
    assert all(row["title"] for row in rows)
    text = (ROOT / "docs/results/why.md").read_text()
    for name in ("results/why", "docs/results/why.md"):
        assert CliRunner().invoke(app, ["docs", name]).stdout == text
    same = (ROOT / "docs/concepts.md").read_text()
    for link in ("../concepts.md#run-id", "docs/concepts.md", "./concepts.md", "concepts"):
        assert CliRunner().invoke(app, ["docs", link]).stdout == same, link
    near = (ROOT / "docs/results/plateau.md").read_text()
    assert CliRunner().invoke(app, ["docs", "plateau.md"]).stdout == near, "a link of a page beside it"
    error = CliRunner().invoke(app, ["docs", "rank.md"]).exception
    assert isinstance(error, UserError) and "answers/rank" in str(error) and "results/rank" in str(error)
    drawn = CliRunner().invoke(app, ["docs", "install"], env={"FORCE_COLOR": "1", "COLUMNS": "80"}).stdout
    assert "Install" in drawn and "\x1b[" in drawn and "# Install" not in drawn
    error = CliRunner().invoke(app, ["docs", "instal"]).exception
    assert isinstance(error, UserError) and "did you mean 'install'?" in str(error)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("hatchling") is None, reason="needs hatchling")
def test_the_wheel_and_the_source_archive(tmp_path: Path) -> None:
    """Both are small, the wheel has every sweep, profile and page, and it can be built from the archive alone."""
    build(ROOT, tmp_path)
    (archive,), (wheel,) = tmp_path.glob("*.tar.gz"), tmp_path.glob("*.whl")
    assert archive.stat().st_size < 2_000_000 and wheel.stat().st_size < 2_000_000
    contents = names_in(wheel)
    bundled = {name.removeprefix("flbench/bundled/") for name in contents if name.startswith("flbench/bundled/")}
    assert bundled >= {*PAGES, *(f"sweeps/{name}.yaml" for name in NAMES), "slurm/profiles/gpu.yaml", "leaderboard.md"}
    assert {Path(name).suffix for name in bundled} == {".md", ".yaml", ".py"}
    assert {"flbench/cli/skeletons/sweep.txt", "flbench/report/write/charts.js"} <= contents
    assert not [name for name in contents if name.startswith(("tests", "results", "benchmarks", "docs", "sweeps"))]
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path / "source", filter="data")
    (source,) = (tmp_path / "source").iterdir()
    assert not {"results", "tests", "benchmarks"} & {path.name for path in source.iterdir()}
    build(source, tmp_path / "again", "wheel")
    assert names_in(next((tmp_path / "again").glob("*.whl"))) == contents


def build(source: Path, out: Path, *targets: str) -> None:
    chosen = [word for target in targets for word in ("-t", target)]
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", str(out), *chosen], cwd=source, check=True)


def names_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as packed:
        return set(packed.namelist())
