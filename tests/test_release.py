"""A release: its tag, its section of the changelog, and the workflows. ``test_references.py`` compares the citation."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path

import pytest
from ruamel.yaml import YAML

ROOT = Path(__file__).parents[1]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]


def test_the_changelog_has_a_section_a_release_the_newest_first() -> None:
    titles = re.findall(r"^## \[(.+?)\](?: - (\d{4}-\d\d-\d\d))?$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert titles[0] == ("Unreleased", "")
    assert all(date for _, date in titles[1:])
    numbers = [tuple(map(int, version.split("."))) for version, _ in titles[1:]]
    assert numbers == sorted(numbers, reverse=True)


@pytest.mark.skipif("FLBENCH_RELEASE" not in os.environ, reason="set by the workflow of a release")
def test_the_tag_is_the_version_and_the_changelog_has_it() -> None:
    assert os.environ["FLBENCH_RELEASE"] == f"v{VERSION}"
    assert re.search(rf"^## \[{re.escape(VERSION)}\] - ", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)


def test_workflows_and_forms_are_yaml() -> None:
    found = [*ROOT.glob(".github/**/*.yml")]
    assert {path.name for path in found} >= {"ci.yml", "nightly.yml", "release.yml", "bug.yml"}
    for path in found:
        assert YAML(typ="safe").load(path.read_text(encoding="utf-8")), path
    scripts = re.findall(r"\.ci/[\w-]+", " ".join(path.read_text(encoding="utf-8") for path in found))
    assert [script for script in scripts if not (ROOT / script).exists()] == []
