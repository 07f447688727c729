"""``flbench partition show``: the samples per class of each client."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.markup import escape

from flbench.cli.boundary import print_json
from flbench.cli.completion import fields as complete_fields
from flbench.cli.options import DataOption, JsonOption
from flbench.cli.screen import plain_table, wide_console
from flbench.config import Federated, parse_experiment
from flbench.data.datasets import load
from flbench.data.shards import LabelCounts, count_labels, shards_of
from flbench.errors import UserError
from flbench.messages import counted
from flbench.report.figures.label_counts import write_figure
from flbench.report.ticks import tick
from flbench.sweeps.source import read_value

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
    help="Show how the data are split across clients.\n\n"
    "Example: flbench partition show dataset=digits partition=dirichlet:0.1",
)

#: The fields of an experiment that define its partition.
_FIELDS = ("dataset", "partition", "clients", "seed", "min_size", "val_fraction")
#: With more classes than this, a row names the client's largest classes instead of all counts.
_MOST_COLUMNS = 20


@app.callback()
def _group() -> None:
    """Keep ``show`` a command of its own although it is the only one."""


@app.command(short_help="Show how many samples of each class every client has.")
def show(
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FIELD=VALUE]...",
            help=f"As in 'flbench run': {', '.join(_FIELDS)}.",
            autocompletion=complete_fields,
        ),
    ] = None,
    dataset: Annotated[str | None, typer.Option(help="Data set (default: digits).")] = None,
    partition: Annotated[
        str | None,
        typer.Option(help="As 'flbench show partitions' lists them, for example dirichlet:0.1 (default: classes:1)."),
    ] = None,
    clients: Annotated[str | None, typer.Option(metavar="INTEGER", help="Number of clients.")] = None,
    seed: Annotated[str | None, typer.Option(metavar="INTEGER", help="Seed of the partition.")] = None,
    min_size: Annotated[
        str | None, typer.Option(metavar="INTEGER", help="Fewest training samples of a client.")
    ] = None,
    val_fraction: Annotated[str | None, typer.Option(metavar="FLOAT", help="Share of training data held out.")] = None,
    data: DataOption = None,
    out: Annotated[Path | None, typer.Option(help="Also draw a figure: a .png, .svg or .pdf file.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show how many samples of each class every client has, as a table and as a figure.

    The partition depends on these fields alone: every method, model and norm with this seed trains on it.

    Example: flbench partition show --dataset digits --partition dirichlet:0.1 --clients 10 --seed 0

    Example: flbench partition show dataset=cifar10 partition=classes:2 clients=10 seed=0 --out classes2.png
    """
    options = (dataset, partition, clients, seed, min_size, val_fraction)
    experiment = _experiment(settings or [], dict(zip(_FIELDS, options, strict=True)))
    dataset_used: Any = experiment.dataset
    images = load(dataset_used, data)
    counts = count_labels(images, shards_of(experiment, images))
    if as_json:
        fields = experiment.to_json()
        record = {
            **{name: fields[name] for name in _FIELDS},
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


def _experiment(settings: list[str], options: dict[str, str | None]) -> Federated:
    """Return the experiment that fields and options describe; raises UserError for the first mistake."""
    fields = {name: read_value(value) for name, value in options.items() if value is not None}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or name not in _FIELDS:
            raise UserError(f"expected FIELD=VALUE with a field of {', '.join(_FIELDS)}; got {setting!r}")
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
