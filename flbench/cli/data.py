"""``flbench data``: list, download, verify and embed data sets."""

from __future__ import annotations

import dataclasses
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from flbench.choices import DEFAULT_STORE, Device
from flbench.cli.boundary import print_json
from flbench.cli.commands import PlainCommand
from flbench.cli.options import MOST_AT_ONCE, NETWORK, DataOption, JsonOption, StoreOption
from flbench.cli.screen import plain_table, wide_console
from flbench.errors import DataMissing, InvalidComponent, UserError
from flbench.registry import DATASETS
from flbench.sweeps.source import read_value

if TYPE_CHECKING:  # imports numpy, which help does not need
    from flbench.data.datasets import Dataset, Source

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
    help="List, download, verify and embed data sets.\n\nExample: flbench data download cifar10",
)


@app.command("list", cls=PlainCommand, short_help="List data sets, and where their files are.")
def list_(data: DataOption = None, as_json: JsonOption = False) -> None:
    """Show every data set: its size, where its files are, and whether they are decoded already.

    Example: flbench data list --json
    """
    from flbench.data.datasets import data_root

    found = sources(data)
    rows = [_describe(cls, found.get(name)) for name, cls in DATASETS.classes.items()]
    if as_json:
        print_json(rows)
        return
    folder = data_root(data)
    _print_list(rows, folder)
    typer.echo(f"\nData folder: {folder} (set $FLBENCH_DATA or --data to change it)")
    if any(_is_missing(row) for row in rows):
        typer.echo("Fetch what is missing: flbench data download NAME...")


@app.command(cls=PlainCommand, short_help="Download data sets and check their checksums.")
def download(
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="Data sets, as 'flbench data list' names them.")],
    data: DataOption = None,
) -> None:
    """Fetch data sets through torchvision, which checks their checksums.

    Example: flbench data download cifar10 fashion_mnist
    """
    from flbench.data import datasets

    for dataset in [_parse(name) for name in names]:
        folder = datasets.download(dataset, data)
        typer.echo(f"{dataset.name}: fetched and checked, in {folder}")


@app.command(cls=PlainCommand, short_help="Check files, counts, labels and the decoded cache.")
def verify(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="Data sets; default: all whose files are found.")
    ] = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check files against published checksums, decode them again, and compare counts, labels and the decoded cache.

    Exit code 1 if any is damaged. Any folder of images can be checked, too.

    Example: flbench data verify cifar10 folder:photos
    """
    from flbench.data import datasets

    reports: list[dict[str, Any]] = []
    found = [DATASETS.parse(name) for name, source in sources(data).items() if source is not None]
    for dataset in [_parse(name) for name in names] if names else found:
        verdict = datasets.verify(dataset, data)
        reports.append(
            {
                "name": dataset.label(),
                "folder": str(verdict.source.folder),
                "layout": verdict.source.layout.title,
                "fingerprint": verdict.fingerprint,
                "counts": verdict.counts,
                "problems": verdict.problems,
                "notes": verdict.notes,
            }
        )
        if not as_json:
            _print_verdict(reports[-1])
    if as_json:
        print_json(reports)
    if any(report["problems"] for report in reports):
        raise typer.Exit(1)


@app.command(cls=PlainCommand, short_help="Write the features of a network for a data set.")
def embed(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Data set, as cifar10, folder:PATH or arrays:PATH.")],
    out: Annotated[Path, typer.Option(help="File to write, *.npz; it must not exist.")],
    run: Annotated[
        str | None,
        typer.Option(rich_help_panel=NETWORK, metavar="ID", help="Stored run whose trained network is used."),
    ] = None,
    network: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=NETWORK,
            help="efficientnet-lite0 (extra 'pretrained'), torchvision:ARCH, or a model's name.",
        ),
    ] = None,
    weights: Annotated[
        Path | None, typer.Option(rich_help_panel=NETWORK, help="Its weights, as torch.save writes them.")
    ] = None,
    round: Annotated[
        int | None, typer.Option(rich_help_panel=NETWORK, help="Round of the run; default: the last one that is saved.")
    ] = None,
    client: Annotated[
        int, typer.Option(rich_help_panel=NETWORK, help="Client whose model of the run is used, where they differ.")
    ] = 0,
    size: Annotated[
        int | None, typer.Option(min=1, max=4096, help="Resize images to this many pixels squared.")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, max=MOST_AT_ONCE, help="Samples at once.")] = 128,
    device: Annotated[Device, typer.Option(help="Where to compute.")] = "auto",
    store: StoreOption = DEFAULT_STORE,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write the input of a fixed network's last layer for each sample of a data set, as arrays:FILE.npz reads it.

    Labels and clients are kept, and where the features are from is stored with them. A network that is trained on
    ImageNet sees images of 224x224 pixels, normalized as its authors do.

    Example: flbench data embed cifar10 --network efficientnet-lite0 --out features.npz
    """
    from flbench.cli.embed import embed_dataset

    embed_dataset(
        _parse(name),
        out,
        run_id=run,
        network=network,
        weights=weights,
        round=round,
        client=client,
        size=size,
        batch=batch,
        device=device,
        store=store,
        data_root=data,
        as_json=as_json,
    )


def _parse(name: str) -> Dataset:
    try:
        dataset: Dataset = DATASETS.parse(read_value(name) if name.startswith("{") else name)
    except (KeyError, InvalidComponent) as error:
        field = ".".join(map(str, getattr(error, "path", ())))
        raise UserError(f"{name}: {field + ': ' if field else ''}{error}") from None
    return dataset


def sources(root: Path | None) -> dict[str, Source | None]:
    """Return where the files of each data set are, None if they are missing; those that need a path are left out."""
    from flbench.data.datasets import locate

    found: dict[str, Source | None] = {}
    for name, cls in DATASETS.classes.items():
        if not _needs_settings(cls):
            try:
                found[name] = locate(cls(), root)
            except DataMissing:
                found[name] = None
    return found


def _describe(cls: type[Dataset], source: Source | None) -> dict[str, Any]:
    row: dict[str, Any] = {
        "name": cls.name,
        "classes": cls.classes,
        "image": cls.image,
        "counts": cls.counts,
        "official_counts": cls.counts,
        "found": None,
        "layout": None,
        "cached": False,
        "terms": cls.terms,
    }
    if source is None:
        return row
    from flbench.data.datasets import recipe

    row |= {
        "found": str(source.folder),
        "layout": source.layout.title,
        "cached": recipe(cls(), source).entry.exists(),  # an entry appears complete
    }
    with suppress(UserError):  # `flbench data verify` reports damaged files
        row["counts"] = source.layout.counts(source.folder) or cls.counts
    return row


def _needs_settings(cls: type[Dataset]) -> bool:
    """Whether a data set has required settings, as ``folder`` has its path."""
    return any(
        field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        for field in dataclasses.fields(cls)
    )


def _print_list(rows: list[dict[str, Any]], folder: Path) -> None:
    """Print a line for each data set; files below ``folder`` by their path in it."""
    table = plain_table()
    for header in ("data set", "classes", "image", "train/test"):
        table.add_column(header, no_wrap=True)
    for header in ("found", "licence"):
        table.add_column(header, overflow="fold")
    for row in rows:
        counts, official = row["counts"], row["official_counts"]
        found = "missing" if _is_missing(row) else f"give its path: {row['name']}:PATH"
        if row["found"]:
            place = Path(row["found"])
            notes = [row["layout"], *(["decoded"] if row["cached"] else [])]
            if official not in (None, counts):
                fewer = all(map(int.__le__, counts, official))
                notes.append(f"a subset of {sum(official):,}" if fewer else f"official: {_counts_text(official)}")
            found = f"{place.relative_to(folder) if place.is_relative_to(folder) else place} ({', '.join(notes)})"
        shape = "x".join(map(str, row["image"] or ()))
        table.add_row(row["name"], str(row["classes"] or ""), shape, _counts_text(counts), escape(found), row["terms"])
    wide_console().print(table)


def _counts_text(counts: tuple[int, int] | None) -> str:
    return "/".join(f"{count:,}" for count in counts or ())


def _is_missing(row: dict[str, Any]) -> bool:
    return row["found"] is None and not _needs_settings(DATASETS[row["name"]])


def _print_verdict(report: dict[str, Any]) -> None:
    typer.echo(
        f"{report['name']}: {'DAMAGED' if report['problems'] else 'ok'}, {report['folder']} ({report['layout']})"
    )
    if report["counts"]:
        train, test = report["counts"]
        typer.echo(f"  {train:,} train and {test:,} test images, fingerprint {report['fingerprint']}")
    for line in (*report["problems"], *report["notes"]):
        typer.echo(f"  {line}")
