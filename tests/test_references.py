"""The sources of components and papers: every key has an entry, every entry has a user."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from ruamel.yaml import YAML

import flbench
from flbench.papers import papers
from flbench.references import keys_of, references, spelled_out
from flbench.registry import REGISTRIES, Component, stated
from flbench.report.bibliography import OWN, bibliography
from flbench.report.runs import Collection, Run
from flbench.report.supplement import Supplement
from tests.report.stores import experiment, leaderboard_of

ROOT = Path(__file__).parents[1]
BIB = Path(flbench.__file__).parent / "references.bib"


def test_every_key_of_a_source_has_an_entry_and_every_component_a_source() -> None:
    known = {cls.name: cls for one in REGISTRIES for cls in one.classes.values()}
    sources = {name: stated(cls, "source") for name, cls in known.items()}
    for name, source in sources.items():
        declared = any("source" in vars(one) for one in known[name].__mro__ if Component not in (one, *one.__bases__))
        assert declared or known[name].__base__ is Component, f"{name}: an empty source says that nobody introduced it"
        assert keys_of(source) or not re.search(r"\d{4}", source), f"{name}: name the paper by its key"
        assert len(keys_of(source)) == len(set(re.findall(r"@\w+", source))), (name, source)
        assert "@" not in spelled_out(source) and not re.search(r"[{}\\]", spelled_out(source)), name


def test_every_entry_is_complete_and_has_a_user() -> None:
    text, known = BIB.read_text(encoding="utf-8"), references()
    assert list(known) == sorted(re.findall(r"^@\w+\{(\w+),$", text, re.MULTILINE)), "each is parsed, in order"
    code = "".join(path.read_text(encoding="utf-8") for path in sorted(BIB.parent.rglob("*.py")))
    for key, one in known.items():
        assert {"author", "title", "year"} <= set(one.fields), key
        assert {"booktitle", "journal", "institution", "howpublished"} & set(one.fields), key
        assert key == OWN or f"@{key}" in code, key
        assert key == OWN or re.fullmatch(r"[a-z]+\d{4}[a-z]+", key), key
        if key != OWN and "arXiv" in one.fields.get("howpublished", ""):
            assert one.fields["howpublished"] == f"arXiv:{one.fields['eprint']}", key
    numbers = [one.fields["eprint"] for one in known.values() if "eprint" in one.fields]
    assert len(set(numbers)) == len(numbers) and all(re.fullmatch(r"\d{4}\.\d{4,5}", one) for one in numbers)


def test_a_bibliography_has_what_the_runs_use_and_the_papers_that_are_compared() -> None:
    requests = [experiment(method=method, norm="rms", partition="iid") for method in ("scaffold", "local-only")]
    runs = tuple(Run(one, one.rounds, "done", record={"acc": 0.5}) for one in requests)
    text = bibliography(leaderboard_of(Collection(runs)))
    keys = re.findall(r"^@\w+\{(\w+),$", text, re.MULTILINE)
    assert keys == [
        "alpaydin1998digits", "flbench", "karimireddy2020scaffold", "pedregosa2011sklearn", "zhang2019rms",
        "zhang2024labelskew",
    ]  # fmt: skip
    assert "% method scaffold\n@inproceedings{karimireddy2020scaffold,\n" in text
    assert text.startswith("% Without an entry: method local-only (baseline: no communication)\n")
    comments = [line for line in text.splitlines() if line.startswith("%")]
    assert not any("@" in line for line in comments), "with which BibTeX begins an entry"


def test_papers_name_their_source_where_they_compare_something() -> None:
    assert Supplement().source == ""
    (label_skew, *_) = papers(why=True)
    assert label_skew.supplement is not None
    assert label_skew.supplement((), Collection(())).source == "@zhang2024labelskew"


def test_the_citation_is_that_of_this_version() -> None:
    cited = YAML(typ="safe").load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    own = references()[OWN].fields
    assert {"cff-version", "message", "title", "authors", "version", "date-released"} <= set(cited)
    assert cited["version"] == project["version"] and own["howpublished"] == f"Version {project['version']}"
    assert (cited["title"], str(cited["date-released"])[:4]) == (own["title"], own["year"])
    assert cited["license"] == project["license"]
