"""Results that others contribute: exported runs with a metadata file, checked before they enter a report.

::

    results/contributed/NAME/
        contribution.yaml    the contributor; for each file its command, machine, code and versions of components
        SWEEP.parquet        exported runs, each marked with the contributor
"""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field
from ruamel.yaml import YAML

from flbench.config import KINDS, registry_of
from flbench.errors import UserError
from flbench.exchange import exports
from flbench.exchange.exports import Exported, run_ids
from flbench.exchange.findings import Findings
from flbench.literal import line
from flbench.messages import some_of
from flbench.registry import UnknownName
from flbench.store import files
from flbench.store.results import CONTRIBUTED_BY
from flbench.sweeps.source import Source
from flbench.sweeps.spec import NAME, Strict

#: The folder below ``results/`` with a folder for each contribution.
CONTRIBUTED = "contributed"
METADATA = "contribution.yaml"

_HEAD = "# Written by `flbench export --contribute`, checked by `flbench verify --results`: do not edit.\n"

_Text = Annotated[str, Field(min_length=1, max_length=2000)]


class ContributedFile(Strict):
    """Where the runs of a file come from."""

    command: _Text = Field(description="the command that makes the runs")
    machine: _Text = Field(description="processor or GPU, and operating system")
    flbench: _Text = Field(description="version of flbench")
    commit: _Text = Field(description="commit of flbench, or that it has none")
    components: dict[str, int] = Field(description="versions of the kinds and components, as 'method fedavg: 1'")

    @classmethod
    def of(cls, runs: Sequence[Exported], command: str) -> ContributedFile:
        """Return what a file with these runs states, with the versions of the components that are installed here."""
        facts = [one.environment for one in runs]
        machines = (", ".join(str(part) for key in ("cpu", "gpu", "system") if (part := own.get(key))) for own in facts)
        commits = (f"{own.get('git_commit') or 'none'}{' and changes' * bool(own.get('git_dirty'))}" for own in facts)
        versions = {
            part: version for one in runs if one.experiment for part, version in one.experiment.versions().items()
        }
        return cls(
            command=command,
            machine=_distinct(machines),
            flbench=_distinct(str(own.get("flbench")) for own in facts),
            commit=_distinct(commits),
            components=dict(sorted(versions.items())),
        )

    def retired(self) -> Iterator[str]:
        """Yield the components that have another version here, or that this flbench does not have."""
        for part, version in self.components.items():
            field, _, name = part.partition(" ")
            registry = KINDS if field == "kind" else registry_of(field)
            try:
                here = registry[name].version if registry is not None else None
            except (KeyError, UnknownName):
                here = None
            if here is None:
                yield f"{part} is unknown here: contribute the component first"
            elif here != version:
                yield f"{part} has version {version} there and {here} here: execute the runs again with this flbench"


def _distinct(texts: Iterable[str]) -> str:
    """Return different texts as one line."""
    return line("; ".join(sorted(set(texts))))[:2000] or "unknown"


class Contribution(Strict):
    """The metadata of a contribution."""

    contributor: _Text = Field(description="name that reports show")
    files: dict[str, ContributedFile]

    @classmethod
    def of_folder(cls, folder: Path) -> Contribution | None:
        """Return the metadata of a contribution; None where there is no such file; raises UserError for a mistake."""
        path = folder / METADATA
        return cls.read(Source.open(path)) if path.exists() else None

    def write(self, folder: Path) -> None:
        """Write it into the folder of the contribution."""
        text, yaml = io.StringIO(), YAML(typ="safe", pure=True)
        yaml.default_flow_style, yaml.width = False, 1000
        yaml.dump(self.model_dump(), text)
        files.replace(folder / METADATA, (_HEAD + text.getvalue()).encode())


def marked(runs: Iterable[Exported], contributor: str) -> list[Exported]:
    """Return runs whose results name their contributor.

    Raises:
        UserError: a run has components of a plug-in, or has another contributor.
    """
    out = []
    for one in runs:
        environment = one.result.environment
        if plugins := environment.get("plugins"):
            raise UserError(f"run {one.run_id} has components of a plug-in ({plugins}): others cannot execute it")
        if (other := environment.get(CONTRIBUTED_BY, contributor)) != contributor:
            raise UserError(f"run {one.run_id} was contributed by {line(str(other))!r}, and imported here")
        result = dataclasses.replace(one.result, environment={**environment, CONTRIBUTED_BY: contributor})
        out.append(dataclasses.replace(one, result=result))
    return out


def elsewhere(folder: Path) -> dict[str, Path]:
    """Return by run id the file of each run in ``results/`` and in the contributions other than the one in ``folder``.

    Raises:
        UserError: one of these files is damaged.
    """
    paths = [*folder.parent.parent.glob("*.parquet"), *folder.parent.glob("*/*.parquet")]
    return {run_id: path for path in sorted(paths) if path.parent != folder for run_id in run_ids(path)}


def contributions_in(path: Path) -> list[Path]:
    """Return the folders of the contributions that a path names; none for exported files of other origin."""
    if path.name == CONTRIBUTED:
        return sorted(one for one in path.iterdir() if one.is_dir())
    return [path] if path.is_dir() and (path.parent.name == CONTRIBUTED or (path / METADATA).exists()) else []


@dataclasses.dataclass
class Review(Findings):
    """Check exported files and contributions, and collect problems and the sound runs."""

    runs: list[Exported] = dataclasses.field(default_factory=list)

    @classmethod
    def of(cls, paths: Sequence[Path]) -> Review:
        """Return the review of exported files, folders of them, and contributions.

        Raises:
            UserError: a path does not exist, or there are no exported files.
        """
        review = cls()
        for path in paths:
            if not path.exists():
                raise UserError(
                    f"--results {path}: no such file or folder; `flbench export`, or `export --contribute`, writes them"
                )
            contributions = contributions_in(path)
            for folder in contributions:
                review.contribution(folder)
            if contributions or path.name == CONTRIBUTED:
                continue
            exported = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
            if not exported:
                raise UserError(f"--results {path}: expected exported files (*.parquet), or a contribution")
            for file in exported:
                review.exported_file(file)
        return review

    def exported_file(self, path: Path) -> list[Exported]:
        """Check a file of exported runs; return the runs, none where it cannot be read."""
        try:
            found = exports.read(path)
        except UserError as error:
            self.report(path, str(error).removeprefix(f"{path}: "))
            return []
        strange = []
        for one in found:
            if one.stored.unknown:
                self.unknown[one.stored.unknown].add(one.run_id)
            elif one.experiment is not None and one.experiment.run_id == one.run_id:
                self.runs.append(one)
            else:
                strange.append(one.run_id)
        if strange:
            self.report(path, f"run {strange[0]}: its id is not the hash of its experiment in this version of flbench")
        return found

    def contribution(self, folder: Path) -> None:
        """Check a contribution: its name, its metadata, its files, and that no other has the same runs."""
        if not NAME.fullmatch(folder.name):
            self.report(folder, "its name: expected letters, digits, '.', '_' and '-'")
        namesakes = [one.name for one in contributions_in(folder.parent) if one.name.lower() == folder.name.lower()]
        if len(namesakes) > 1:
            self.report(folder, f"the name is taken: {', '.join(namesakes)} differ only in case")
        try:
            stated, others = Contribution.of_folder(folder), elsewhere(folder)
        except UserError as error:
            self.report(folder, str(error))
            return
        if stated is None:
            self.report(folder, f"{METADATA} is missing: `flbench export --contribute` writes it")
            return
        present = {path.name for path in folder.iterdir()} - {METADATA}
        for name in sorted(present ^ stated.files.keys()):
            self.report(folder / name, f"not listed in {METADATA}" if name in present else "missing")
        for name in sorted(present & stated.files.keys()):
            for problem in self._contributed_file(folder / name, stated.contributor, stated.files[name], others):
                self.report(folder / name, problem)

    def _contributed_file(
        self, path: Path, contributor: str, stated: ContributedFile, others: Mapping[str, Path]
    ) -> Iterator[str]:
        if retired := list(stated.retired()):
            yield from retired  # of which the wrong run ids are only a consequence
            return
        found = self.exported_file(path)
        marks = {str(one.result.environment.get(CONTRIBUTED_BY)) for one in found} - {contributor}
        if marks:
            yield (
                f"the name {path.parent.name} is taken: it belongs to {contributor!r}, and these runs were contributed "
                f"by {', '.join(map(repr, sorted(marks)))}; contribute them under another name"
            )
        if any(one.result.environment.get("plugins") for one in found):
            yield "it has runs with components of plug-ins, which others cannot execute"
        if double := sorted(one.run_id for one in found if one.run_id in others):
            runs = some_of(len(double), len(found), "run", "is")
            yield f"{runs} in other files already, as {double[0]} in {others[double[0]]}"
        facts = ContributedFile.of(found, stated.command) if found else stated
        for field in ContributedFile.model_fields:
            if (own := getattr(facts, field)) != (said := getattr(stated, field)):
                yield f"{METADATA} says {field}: {said!r}, the runs say {own!r}"
