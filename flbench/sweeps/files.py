"""Where sweep files are found: by path, by name in the user's folder, or by name among those that come with flbench."""

from __future__ import annotations

import os
from pathlib import Path

from flbench.installation import bundled
from flbench.messages import by_similarity, did_you_mean

#: Where a sweep file is looked up by its name first.
FOLDER = Path("sweeps")

#: Files, and names of flbench's own, that a message lists at most.
_MOST_NEAR = 8


def find_file(name: Path | str) -> Path:
    """Return the path of a sweep file.

    A NAME without ending, unless that is a file itself, means ``sweeps/NAME.yaml``, or the file of that name that comes
    with flbench.
    """
    path = Path(name)
    if path.suffix or os.path.isfile(path):  # noqa: PTH113  Path.is_file raises where a name is too long
        return path
    named = FOLDER / f"{path}.yaml"
    if os.path.isfile(named):  # noqa: PTH113
        return named
    return bundled_files().get(str(path), path)


def bundled_files() -> dict[str, Path]:
    """Return the sweep files that come with flbench by their names: ``quickstart``, ``paper/table01``."""
    folder = bundled(FOLDER.name)
    return {path.relative_to(folder).with_suffix("").as_posix(): path for path in sorted(folder.rglob("*.yaml"))}


def shadowed(name: str) -> bool:
    """Return whether a file of the user's folder has the name of one that comes with flbench."""
    return (FOLDER / f"{name}.yaml").is_file()


def name_of(path: Path) -> str | None:
    """Return the name of a file that ``find_file`` found among those that come with flbench; None for any other."""
    folder = bundled(FOLDER.name)
    return path.relative_to(folder).with_suffix("").as_posix() if path.is_relative_to(folder) else None


def near(path: Path) -> str:
    """Return which sweep files there are, a similar one first, to end a message."""
    files = sorted(str(found) for folder in (path.parent, FOLDER) for found in folder.glob("*.yaml"))
    files = by_similarity(str(path), dict.fromkeys(files))[:_MOST_NEAR]
    names = by_similarity(path.stem, (name for name in bundled_files() if not shadowed(name)))[:_MOST_NEAR]
    stems = {Path(name).stem: name for name in (*names, *files)}
    alike = [stems[stem] for stem in by_similarity(path.stem, stems)[:1] if did_you_mean(path.stem, [stem])]
    hint = f"; did you mean {alike[0]!r}?" if alike else ""
    there = [f"there are {', '.join(files)}"] if files else []
    own = [f"flbench has {', '.join(names)} (flbench show sweeps lists all)"] if names else []
    rest = "; ".join(there + own)
    return hint + (f"{' ' if hint else '; '}{rest}" if rest else "")
