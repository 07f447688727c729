"""Releases: ``.ci/release`` copies the version to all places; workflows and forms for issues are well formed."""

from __future__ import annotations

import datetime
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

ROOT = Path(__file__).parents[1]
FILES = (
    "pyproject.toml", "CITATION.cff", "flbench/references.bib", "docs/paper.md", "docs/install.md", "README.md",
    "CHANGELOG.md", ".ci/release",
)  # fmt: skip


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a copy of the files that a release changes, with one change that is not released."""
    for name in FILES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    path = tmp_path / "CHANGELOG.md"
    path.write_text(path.read_text().replace("## [Unreleased]\n", "## [Unreleased]\n\n- A new command.\n", 1))
    return tmp_path


def release(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-S", tree / ".ci" / "release", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_release_writes_its_version_and_its_section(tree: Path) -> None:
    assert release(tree, "9.8.7").returncode == 0
    notes = release(tree, "--notes", "v9.8.7")
    assert notes.returncode == 0 and notes.stdout.startswith("- A new command.\n"), notes.stderr
    assert "## [" not in notes.stdout, "one section"
    today = datetime.date.today()
    assert f"\n## [Unreleased]\n\n## [9.8.7] - {today}\n" in (tree / "CHANGELOG.md").read_text()
    assert f'\ndate-released: "{today}"\n' in (tree / "CITATION.cff").read_text()
    wheels = {text for name in FILES for text in re.findall(r"flbench-[\d.]+-py3", (tree / name).read_text())}
    assert wheels == {"flbench-9.8.7-py3"}
    assert release(tree, "9.9.0").stderr == "CHANGELOG.md: expected one section [Unreleased] with text\n"


def test_a_tag_of_another_version_is_refused(tree: Path) -> None:
    assert release(tree, "--notes", "v9.8.7").returncode == 1
    assert release(tree, "9.8.7").returncode == 0
    (tree / "CITATION.cff").write_text((tree / "CITATION.cff").read_text().replace("9.8.7", "9.8.6"))
    assert release(tree, "--notes", "v9.8.7").stderr == "CITATION.cff has version 9.8.6, the tag is v9.8.7\n"
    assert "expected a version like 0.2.0" in release(tree, "v9.8.7").stderr


def test_this_tree_has_one_version() -> None:
    version = re.findall(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert release(ROOT, "--notes", f"v{version[0]}").returncode == 0


def test_no_page_names_a_wheel_that_a_release_does_not_rename() -> None:
    pages = [path.relative_to(ROOT).as_posix() for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]]
    assert {page for page in pages if re.search(r"flbench-\d[\w.]*-py3", (ROOT / page).read_text())} <= {*FILES}


def test_the_changelog_has_a_section_a_release_the_newest_first() -> None:
    titles = re.findall(r"^## \[(.+?)\](?: - (\d{4}-\d\d-\d\d))?$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert titles[0] == ("Unreleased", "")
    assert all(date for _, date in titles[1:])
    numbers = [tuple(map(int, version.split("."))) for version, _ in titles[1:]]
    assert numbers == sorted(numbers, reverse=True)


def test_the_changelog_begins_with_what_users_see() -> None:
    """Each release has the usual headings in their order; what only contributors need is folded, at its end."""
    headings = ["### Breaking changes", "### Added", "### Changed", "### Fixed", '<details markdown="1">', "</details>"]
    for part in re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)[1:]:
        found = [line for line in part.splitlines() if line.startswith(("### ", "<details", "</details"))]
        assert found == [heading for heading in headings if heading in found], part.splitlines()[0]


def loaded(path: Path) -> Any:
    return YAML(typ="safe").load(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", sorted(ROOT.glob(".github/workflows/*.yml")), ids=lambda path: path.stem)
def test_a_workflow_names_what_exists(path: Path) -> None:
    """Jobs have a time limit and exist where others need them, actions a version, and scripts are in the tree."""
    jobs = loaded(path)["jobs"]
    for job in jobs.values():
        assert job["timeout-minutes"] <= 90
        needed = job.get("needs", [])
        assert {needed} <= jobs.keys() if isinstance(needed, str) else {*needed} <= jobs.keys()
        used = [step["uses"] for step in job["steps"] if "uses" in step]
        assert [action for action in used if not re.fullmatch(r"[\w-]+/[\w-]+@(release/)?v\d+", action)] == []
    for name in re.findall(r"\.ci/[a-z-]+", path.read_text()):
        assert (ROOT / name).exists(), name


def test_forms_for_issues_ask_what_a_report_needs() -> None:
    """A form has a name and fields with different ids; a bug cannot be reported without the output of ``doctor``."""
    forms = {path.stem: loaded(path) for path in ROOT.glob(".github/ISSUE_TEMPLATE/*.yml") if path.stem != "config"}
    for form in forms.values():
        assert form["name"] and form["description"]
        fields = [field["id"] for field in form["body"] if field["type"] != "markdown"]
        assert len(fields) == len({*fields})
    (doctor,) = (field for field in forms["bug"]["body"] if field.get("id") == "doctor")
    assert "flbench doctor --json" in doctor["attributes"]["label"] and doctor["validations"]["required"]
