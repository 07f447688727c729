"""``flbench show partition``: the samples per class of each client."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import typer
from rich.markup import escape

from flbench.cli.boundary import print_json
from flbench.cli.screen import plain_table, wide_console
from flbench.config import Federated, parse_experiment
from flbench.data.datasets import load
from flbench.data.shards import LabelCounts, count_labels, shards_of
from flbench.errors import UserError
from flbench.messages import counted
from flbench.report.figures.label_counts import write_figure
from flbench.report.ticks import tick
from flbench.sweeps.source import read_value

#: The fields of an experiment that define its partition.
FIELDS = ("dataset", "partition", "clients", "seed", "min_size", "val_fraction", "server_fraction")
#: With more classes than this, a row names the client's largest classes instead of all counts.
_MOST_COLUMNS = 20


def show_partition(settings: Sequence[str], data: Path | None, out: Path | None, *, as_json: bool) -> None:
    """Print the table of a partition, or its counts as JSON, and draw it as a figure if ``out`` is given.

    Raises:
        UserError: a setting is no FIELD=VALUE of ``FIELDS``, or the data or the figure's file cannot be used.
    """
    experiment = _experiment(settings)
    dataset: Any = experiment.dataset
    images = load(dataset, data)
    counts = count_labels(images, shards_of(experiment, images))
    if as_json:
        fields = experiment.to_json()
        record = {
            **{name: fields[name] for name in FIELDS},
            "fingerprint": images.fingerprint,
            "class_names": counts.class_names,
            "domains": counts.domains_K,
            "train": counts.train_KC.tolist(),
            "test": counts.test_KC.tolist(),
        }
        print_json(record)
    else:
        _print_table(experiment, counts)
    if out is not None:
        write_figure(counts, _title(experiment), out)
        typer.echo(f"wrote {out}", err=True)


def _experiment(settings: Sequence[str]) -> Federated:
    fields: dict[str, Any] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or name not in FIELDS:
            raise UserError(f"expected FIELD=VALUE with a field of {', '.join(FIELDS)}; got {setting!r}")
        if name in fields:
            raise UserError(f"{name} is given twice")
        fields[name] = read_value(value)
    return cast("Federated", parse_experiment(fields))


def _title(experiment: Federated) -> str:
    what = ", ".join(tick(name, getattr(experiment, name)).label for name in ("dataset", "partition"))
    return f"{what}, {counted(experiment.clients, 'client')}, seed {experiment.seed}"


def _print_table(experiment: Federated, counts: LabelCounts) -> None:
    few = len(counts.class_names) <= _MOST_COLUMNS
    table = plain_table(gap=1)
    table.add_column("client", justify="left" if counts.domains_K else "right")
    for name in [escape(name[:5]) for name in counts.class_names] if few else ["classes"]:
        table.add_column(name, justify="right", no_wrap=few)
    if not few:
        table.add_column("largest")
    table.add_column("train", justify="right", style="bold")
    table.add_column("test", justify="right", style="bold")
    names, (trains, tests) = counts.client_names(), (counts.train_KC, counts.test_KC)
    for client, train, test in zip(names, trains, tests, strict=True):
        cells = [str(n) if n else "·" for n in train] if few else map(escape, _largest(counts.class_names, train))
        table.add_row(escape(client), *cells, str(train.sum()), str(test.sum()))
    console = wide_console()
    console.print(_title(experiment), markup=False, highlight=False, style="italic")
    console.print(table)


def _largest(names: tuple[str, ...], counts: Any) -> list[str]:
    """Return the number of classes of a client, and the three largest."""
    held = [label for label in counts.argsort(kind="stable")[::-1] if counts[label]]
    text = ", ".join(f"{names[label][:24]} {counts[label]}" for label in held[:3])
    return [str(len(held)), text + (", ..." if len(held) > 3 else "")]
