"""Check exported files and contributions, and execute some of their runs again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from flbench.cli.recompute import CLOSE, Recomputed, evenly, recompute
from flbench.errors import UserError
from flbench.report.contributions import CONTRIBUTED, Review, contributions_in
from flbench.report.exports import Exported
from flbench.report.transfer import import_runs
from flbench.store import Lease, Store

#: Runs that took longer than this many seconds are executed again only if there are no others.
CHEAP = 60.0


def review(paths: Sequence[Path]) -> Review:
    """Return the review of exported files, folders of them, and contributions.

    Raises:
        UserError: a path does not exist, or there are no exported files.
    """
    found = Review()
    for path in paths:
        if not path.exists():
            raise UserError(f"--results {path}: no such file or folder; `flbench contribute` or `export` writes them")
        contributions = contributions_in(path)
        for folder in contributions:
            found.contribution(folder)
        if contributions or path.name == CONTRIBUTED:
            continue
        exported = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
        if not exported:
            raise UserError(f"--results {path}: expected exported files (*.parquet), or a contribution")
        for file in exported:
            found.exported_file(file)
    return found


def recompute_exported(runs: Sequence[Exported], count: int, data_root: Path | None) -> Iterator[Recomputed]:
    """Execute ``count`` of the cheap runs again, always the same ones, and compare accuracies within ``CLOSE``."""
    by_cost = sorted(runs, key=lambda one: one.result.seconds)
    cheap = [one for one in by_cost if one.result.seconds <= CHEAP] or by_cost[:count]
    chosen = evenly(sorted(cheap, key=lambda one: one.run_id), count)
    with TemporaryDirectory(prefix="flbench-verify-") as scratch:
        store = Store(Path(scratch) / "store")
        import_runs(store, chosen, Lease.here())
        yield from recompute(store, [one.run_id for one in chosen], count, data_root, close=CLOSE)
