"""``flbench data embed``: write the features of a network for a data set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from flbench.choices import Device
from flbench.cli.boundary import print_json
from flbench.data.cache import progress
from flbench.data.datasets import Dataset, load
from flbench.errors import UserError
from flbench.launchers import used_device
from flbench.store import Store


def embed_dataset(
    dataset: Dataset,
    out: Path,
    *,
    run_id: str | None,
    network: str | None,
    weights: Path | None,
    round: int | None,
    client: int,
    size: int | None,
    batch: int,
    device: Device,
    store: Path,
    data_root: Path | None,
    as_json: bool,
) -> None:
    """Write the features of ``dataset`` to ``out``; raises UserError for options that contradict each other."""
    if (run_id is None) == (network is None):
        raise UserError("give either --run, the id of a stored run, or --network, the name of a network")
    if run_id is not None and weights is not None:
        raise UserError("--weights is a file for --network; a run has its own")
    if out.suffix != ".npz":
        raise UserError(f"{out}: the file is a numpy archive; expected a name that ends with .npz")
    if out.exists():
        raise UserError(f"{out} exists; delete it, or give another file by --out")
    if not out.parent.is_dir():
        raise UserError(f"{out}: there is no folder {out.parent}")
    data = load(dataset, data_root)
    from flbench import embedding  # imports torch

    used = used_device(device)

    if run_id is not None:
        opened = Store(store, create=False)
        if (found := opened.id_beginning_with(run_id)) is None:
            raise UserError(f"{run_id}: no run of {opened.root} has this id; `flbench runs` lists them")
        backbone = embedding.of_run(opened.run(found), round, client, data_root, size, used)
    else:
        backbone = embedding.pretrained(str(network), weights, size, data, used)
    samples = len(data.train.labels) + len(data.test.labels)
    # The bar is shown in terminals alone, and a large network takes minutes.
    typer.echo(f"{dataset.label()}: computing the features of {samples:,} samples", err=True)
    with progress(f"embedding {dataset.label()}", samples) as advance:
        features = embedding.embedded(data, backbone, used, batch, advance)
    record: dict[str, Any] = embedding.write(out, data, features, {"dataset": dataset.label(), **backbone.record})
    if as_json:
        print_json({"out": str(out), **record})
        return
    train, test = features
    typer.echo(
        f"{out}: {len(train):,} and {len(test):,} samples of {train.shape[1]} features, content {record['content']}"
    )
    typer.echo(f"Train a head on them: flbench run dataset=arrays:{out} model=mlp")
