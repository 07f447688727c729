"""Pages that list what the code has: keys of sweep files and profiles, fields of an experiment, metrics, figures."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from flbench.config import KINDS, parse_experiment
from flbench.sweeps import load_sweep, spec
from flbench.sweeps.profile import Profile
from tests.warm import warm_python

DOCS = Path(__file__).parents[1] / "docs"
PAGE, CLUSTER = ((DOCS / name).read_text(encoding="utf-8") for name in ("sweep-file.md", "cluster.md"))

#: The YAML blocks of the page by the model whose keys they show; a comment above each block names it.
BLOCKS = dict(re.findall(r"^<!-- keys: (\w+) -->\n```yaml\n(.*?)^```", PAGE + CLUSTER, re.MULTILINE | re.DOTALL))


def read(model: str) -> dict[str, Any]:
    return YAML(typ="safe").load(BLOCKS[model])


def models() -> Mapping[str, type[spec.Strict]]:
    ours = [cls for cls in spec.Strict.__subclasses__() if cls.__module__ == spec.__name__]
    return {cls.__name__: cls for cls in [*ours, Profile]}


def test_the_page_has_a_block_for_every_part_of_a_file() -> None:
    assert set(BLOCKS) == {*models(), "federated"}


@pytest.mark.parametrize("model", models())
def test_a_block_has_every_key_with_a_valid_value(model: str) -> None:
    cls, found = models()[model], read(model)
    assert list(found) == cls.known_keys()
    assert cls.model_validate(found)


def test_the_fields_of_an_experiment_and_their_defaults() -> None:
    fields = KINDS["federated"].model_fields
    found = read("federated")
    assert sorted(found) == sorted(fields)
    default = parse_experiment({"kind": "federated"})
    assert parse_experiment({key: value for key, value in found.items() if value is not None}) == default
    assert {key for key, value in found.items() if value is None} == {
        name for name, field in fields.items() if field.default is None
    }


def test_the_whole_file(tmp_path: Path) -> None:
    """The sweep loads: every entry has an effect, or loading fails."""
    (text,) = re.findall(r'^```yaml title="whole file"\n(.*?)^```', PAGE, re.MULTILINE | re.DOTALL)
    file = tmp_path / "my_norms.yaml"
    file.write_text(text, encoding="utf-8")
    arithmetic = load_sweep(file).arithmetic
    assert arithmetic.runs == 5 * arithmetic.cells


def test_the_gallery_has_every_kind_of_figure() -> None:
    text = (DOCS / "gallery.md").read_text(encoding="utf-8")
    shown = {path.partition("-")[0] for path in re.findall(r"\]\(figures/(.*?)\.svg\)", text)}
    kept = {path.stem.partition("-")[0] for path in DOCS.glob("figures/*.svg")}
    assert shown == kept == set(re.findall(r"^flbench plot (\w+) ", text, re.MULTILINE))


@pytest.mark.parametrize(
    "kind", [pytest.param("overview", marks=pytest.mark.slow), pytest.param("published", marks=pytest.mark.nightly)]
)
def test_the_command_in_the_gallery_draws_the_figure_below_it(kind: str, tmp_path: Path) -> None:
    text = (DOCS / "gallery.md").read_text(encoding="utf-8")
    found = re.search(rf"^(flbench plot {kind} .*)\n```\n\n!\[.*\]\((figures/.*)\)$", text, re.MULTILINE)
    assert found is not None
    command = [warm_python(), "-c", "from flbench.cli import main; main()", *shlex.split(found[1])[1:]]
    subprocess.run([*command, "--out", str(tmp_path)], cwd=DOCS.parent, check=True, capture_output=True)
    assert (tmp_path / Path(found[2]).name).read_bytes() == (DOCS / found[2]).read_bytes()
