"""The data set ``hf``: folders of Hugging Face's ``datasets``; skipped without the extra ``hf``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flbench.config import parse_experiment
from flbench.data.datasets import load, verify
from flbench.data.shards import shards_of
from flbench.errors import UserError
from flbench.registry import DATASETS
from tests.data.files import encode, labels, pixels

datasets = pytest.importorskip("datasets")

IMAGES, TOKENS = pixels(12, (3, 6, 5)), np.random.default_rng(0).integers(0, 30, (12, 4))
FLOATS = np.random.default_rng(1).normal(size=(12, 3)).astype(np.float32)
WRITERS = ["ann", "bo", "cy"] * 4


def saved(folder: Path, kind: str, parquet: bool = False, **more: Any) -> Path:
    class_label = datasets.ClassLabel(names=["cat", "dog", "eel"])
    values, feature = {
        "image": ([{"bytes": encode(image), "path": None} for image in IMAGES], datasets.Image()),
        "tokens": (TOKENS.tolist(), datasets.List(datasets.Value("int64"))),
        "floats": (FLOATS.tolist(), datasets.List(datasets.Value("float32"))),
    }[kind]
    columns = {kind: values, "label": labels(12, 3).tolist(), "writer_id": WRITERS, **more}
    features = {kind: feature, "label": class_label, "writer_id": datasets.Value("string")}
    features |= {name: datasets.Value("int64") for name in more}
    train = datasets.Dataset.from_dict(columns, features=datasets.Features(features))
    halves = {"train": train, "test": train.select(range(6))}
    if parquet:
        folder.mkdir()
        for name, half in halves.items():
            half.to_parquet(str(folder / f"{name}-00000-of-00001.parquet"))
    else:
        datasets.DatasetDict(halves).save_to_disk(str(folder))
    return folder


@pytest.mark.parametrize("parquet", [False, True])
@pytest.mark.parametrize(("kind", "expected"), [("image", IMAGES), ("tokens", TOKENS), ("floats", FLOATS)])
def test_folders_are_read(tmp_path: Path, kind: str, expected: np.ndarray, parquet: bool) -> None:
    dataset = DATASETS.parse(f"hf:{saved(tmp_path / 'set', kind, parquet)}")
    data = load(dataset)
    assert np.array_equal(data.train.images, expected)
    assert np.array_equal(data.test.images, expected[:6])
    assert np.array_equal(data.train.labels, labels(12, 3))
    assert data.class_names == ("cat", "dog", "eel")
    assert data.vocabulary == (int(TOKENS.max()) + 1 if kind == "tokens" else 0)
    assert verify(dataset).problems == ()


def test_clients_are_the_writers(tmp_path: Path) -> None:
    plain = {"name": "hf", "path": str(saved(tmp_path / "set", "image")), "groups": ["writer_id"], "size": 8}
    data = load(DATASETS.parse(plain))
    assert data.shape == (3, 8, 8)
    fields = {"dataset": plain, "model": "mlp", "clients": 3, "partition": {"name": "by", "column": "writer_id"}}
    experiment: Any = parse_experiment({**fields, "E": 1, "min_size": 1})
    assert [rows.tolist() for rows in shards_of(experiment, data).train] == [[k, k + 3, k + 6, k + 9] for k in range(3)]


def test_what_does_not_fit_is_said(tmp_path: Path) -> None:
    place = str(saved(tmp_path / "set", "tokens", other=list(range(12))))
    (tmp_path / "empty").mkdir()
    for settings, says in [
        ({"test": "validation"}, "unknown split 'validation'.*known: .*test.*Name the splits"),
        ({"samples": "image"}, "unknown column 'image'"),
        ({"target": "writer_id"}, "the column 'writer_id' must hold whole numbers"),
        ({"groups": ["age"]}, "unknown column 'age'"),
        ({"samples": "other"}, "the column 'other' must hold lists of numbers, it holds Value"),
        ({"path": str(tmp_path / "missing")}, "no folder"),
        ({"path": str(tmp_path / "empty")}, "no .*arrow"),
    ]:
        with pytest.raises(UserError, match=says):
            load(DATASETS.parse({"name": "hf", "path": place, **settings}))
    ragged = datasets.Dataset.from_dict({"x": [[1, 2], [1]], "y": [0, 1]})
    datasets.DatasetDict({"train": ragged, "test": ragged}).save_to_disk(str(tmp_path / "ragged"))
    with pytest.raises(UserError, match="several columns could be the target, or none: name it, target: COLUMN"):
        load(DATASETS.parse(f"hf:{tmp_path / 'ragged'}"))
    with pytest.raises(UserError, match="differ in length, from 1 to 2; pad them"):
        load(DATASETS.parse({"name": "hf", "path": str(tmp_path / "ragged"), "target": "y"}))
