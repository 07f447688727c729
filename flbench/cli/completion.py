"""Completion at the Tab key: sweep files, sweeps and runs of the store, fields and components.

A shell starts a new process at every Tab, so nothing here imports torch or reads files whose number grows with the
runs. Commands import this module for their options, so it imports inside functions what takes a tenth of a second.
Shells replace the word under the cursor, and add a space if there is only one candidate; bash, for which ``=`` and
``:`` end a word, completes what follows them as a word of its own.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args, get_origin

import typer

from flbench.choices import DEFAULT_STORE, OwnBackend
from flbench.errors import UserError
from flbench.metric_specs import METRICS

if TYPE_CHECKING:
    from flbench.store import Store

#: Ids offered at most.
MOST_RUNS = 50

#: Folders that are searched at most.
MOST_FOLDERS = 100


def sweep_files(incomplete: str) -> list[str]:
    """Return the YAML files that complete a path, then the sweeps of flbench that complete a name.

    In place of folders the files in them are returned, so that none ends a path.
    """
    from flbench.sweeps import bundled_files

    start = f"{glob.escape(incomplete)}*"
    folders = sorted(glob.glob(f"{start}/"))[:MOST_FOLDERS]  # noqa: PTH207  a Path would lose the "./" that was typed
    patterns = [start, *(f"{glob.escape(folder)}*" for folder in folders)]
    found = (path for one in patterns for path in sorted(glob.glob(one)))  # noqa: PTH207
    files = [path for path in found if path.endswith((".yaml", ".yml"))]
    return files + [name for name in bundled_files() if incomplete and name.startswith(incomplete)]


def backends(incomplete: str) -> list[str]:
    """Return the names of where workers can run."""
    from flbench.registry import LAUNCHERS

    return [name for name in (*get_args(OwnBackend), *LAUNCHERS.classes) if name.startswith(incomplete)]


def sweeps(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return sweeps of the store, by name or as NAME/HASH, and sweep files."""
    from flbench.store import plan_name

    store = _store_of(ctx)
    plans = [plan_name(directory) for directory in store.sweep_dirs()] if store else []
    named = plans if "/" in incomplete else sorted({plan.partition("/")[0] for plan in plans})
    return [*named, *sweep_files(incomplete)]


def targets(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return what ``sweeps`` does, and started runs once two digits of an id are typed."""
    store = _store_of(ctx)
    found: list[str] = []
    if store and re.fullmatch(r"[0-9a-f]{2,16}", incomplete):
        found = sorted(path.name for path in (store.root / "runs" / incomplete[:2]).glob(f"{incomplete}*"))
    return [*sweeps(ctx, incomplete), *found[:MOST_RUNS]]


def _store_of(ctx: typer.Context) -> Store | None:
    from flbench.store import Store

    with suppress(UserError, OSError):
        return Store(Path(ctx.params.get("store") or DEFAULT_STORE), create=False)
    return None


def shown_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names of one of the lists of ``flbench show``, or runs once two digits of an id are typed."""
    from flbench.config import KINDS
    from flbench.registry import REGISTRIES

    what = str(ctx.params.get("what") or "").removesuffix("s")
    if what == "run":
        return targets(ctx, incomplete) if incomplete else []
    if what == "partition" and ctx.params["what"] == what:
        return _fields_after(ctx.params.get("names") or (), incomplete)
    if what == "kind":
        return list(KINDS)
    if what == "metric":
        return list(METRICS)
    if what == "figure":
        return figures(incomplete)
    if what == "sweep":
        return sweep_files(incomplete)
    return next((list(registry.classes) for registry in REGISTRIES if registry.kind == what), [])


def figures(incomplete: str) -> list[str]:
    """Return the kinds of figures that begin with a text."""
    from flbench.papers import papers  # with the report, which other words do not need
    from flbench.report.paper import figure_kinds

    return [name for name in figure_kinds(papers()) if name.startswith(incomplete)]


def fields(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return completions of FIELD=VALUE for the kind of experiment typed so far: names, then values or the default."""
    return _fields_after(ctx.params.get("fields") or (), incomplete)


def conditions(incomplete: str) -> list[str]:
    """Return completions of the FIELD=VALUE of ``--only``, in one word."""
    from flbench.config import KINDS

    return _assignments(incomplete, (), list(KINDS))


def _fields_after(before: Sequence[str], incomplete: str) -> list[str]:
    from flbench.config import KINDS

    kind = re.search(r"(?:^| )kind ?= ?(\S+)", " ".join(before))  # however the shell splits the words
    kinds = [kind[1]] if kind and kind[1] in KINDS else ["federated"]
    left = before[:-1] if before[-1:] == ["="] else before
    if left and left[-1] in _field_names(kinds):  # the shell split FIELD=VALUE
        return _values(left[-1], kinds)
    given = {word.partition("=")[0] for word in before}
    return _assignments(incomplete, given, kinds)


def _assignments(incomplete: str, given: Iterable[str], kinds: Sequence[str]) -> list[str]:
    """Return FIELD=VALUE in one word, for all fields of some kinds that are not ``given``."""
    name, equals, _ = incomplete.partition("=")
    known = _field_names(kinds)
    matching = [name] if equals and name in known else [one for one in known if one.startswith(incomplete)]
    matching = [one for one in matching if one not in given]
    if len(matching) != 1:
        return [f"{one}=" for one in matching]
    return [f"{matching[0]}={value}" for value in _values(matching[0], kinds)]


def _field_names(kinds: Sequence[str]) -> list[str]:
    from flbench.config import ALIASES, KINDS

    fields = dict.fromkeys(field for kind in kinds for field in KINDS[kind].model_fields)
    return [*fields, *(alias for alias, field in ALIASES.items() if field in fields)]


def _values(field: str, kinds: Sequence[str]) -> list[str]:
    """Return components (with a colon if they take a value) or choices; for any other field its default."""
    from flbench.config import ALIASES, KINDS, registry_of

    field = ALIASES.get(field, field)
    if field == "kind":
        return list(KINDS)
    registry = registry_of(field)
    if registry is not None:
        return [f"{name}:" if cls.shorthand else name for name, cls in registry.classes.items()]
    infos = [KINDS[kind].model_fields[field] for kind in kinds if field in KINDS[kind].model_fields]
    choices = [
        str(choice) for info in infos if get_origin(info.annotation) is Literal for choice in get_args(info.annotation)
    ]
    if choices:
        return list(dict.fromkeys(choices))
    default = infos[0].default
    return [] if default is None else [str(default).lower() if isinstance(default, bool) else str(default)]
