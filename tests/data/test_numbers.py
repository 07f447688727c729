"""Samples that are no bytes: features, images as floats, tokens; and the partition by a column."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import flbench
from flbench.config import parse_experiment
from flbench.data.datasets import load, verify
from flbench.data.preflight import misfits
from flbench.data.shards import count_labels, shards_of
from flbench.errors import UserError
from flbench.registry import DATASETS
from tests.data.files import labels, pixels

NUMBERS = np.random.default_rng(0).normal(5, 30, (12, 7))
IMAGES = np.random.default_rng(1).normal(0, 3, (12, 5, 4, 6)).astype(np.float32)
TOKENS = np.random.default_rng(2).integers(0, 40, (12, 6))


def archive(path: Path, x: np.ndarray, arrays: dict[str, Any] | None = None, **settings: Any) -> Any:
    y = labels(len(x), 3)
    np.savez_compressed(path, **{"x_train": x, "y_train": y, "x_test": x[:3], "y_test": y[:3], **(arrays or {})})
    return DATASETS.parse({"name": "arrays", "path": str(path), **settings})


@pytest.mark.parametrize(
    ("x", "settings", "expected"),
    [
        (NUMBERS.astype(np.float32), {}, NUMBERS.astype(np.float32)),
        (NUMBERS, {}, NUMBERS.astype(np.float32)),
        (NUMBERS.astype(np.float16), {"dtype": "float32"}, NUMBERS.astype(np.float16).astype(np.float32)),
        (np.asfortranarray(NUMBERS), {}, NUMBERS.astype(np.float32)),
        (TOKENS, {"dtype": "float32"}, TOKENS.astype(np.float32)),
        (IMAGES, {"dtype": "float32"}, IMAGES),  # five channels, any range
        (IMAGES[:, 0], {"dtype": "float32"}, IMAGES[:, :1]),
        (IMAGES[:, :3].transpose(0, 2, 3, 1), {"dtype": "float32"}, IMAGES[:, :3]),
        (pixels(12, (3, 4, 6)), {"dtype": "float32"}, pixels(12, (3, 4, 6)).astype(np.float32)),
        (TOKENS, {}, TOKENS),
        (TOKENS.astype(np.uint8), {}, TOKENS),
    ],
)
def test_numbers_are_read_as_they_are(
    tmp_path: Path, x: np.ndarray, settings: dict[str, Any], expected: np.ndarray
) -> None:
    dataset = archive(tmp_path / "a.npz", x, **settings)
    for data in (load(dataset), load(dataset)):  # decoded, and from the cache
        assert np.array_equal(data.train.images, expected)
        assert np.array_equal(data.test.images, expected[:3])
        assert data.train.images.dtype == (np.int32 if not settings and x.dtype.kind in "ui" else np.float32)
        assert (data.white, data.notes) == (1, ())
        assert data.vocabulary == (int(TOKENS.max()) + 1 if data.train.images.dtype == np.int32 else 0)
        assert data.shape == (expected.shape[1:] if not data.vocabulary else (6, data.vocabulary))
    assert verify(dataset).problems == ()


def test_another_reading_is_another_content_and_an_entry_of_its_own(tmp_path: Path) -> None:
    x = pixels(12, (1, 4, 6))
    ways: list[dict[str, Any]] = [{}, {"dtype": "float32"}, {"standardize": True}]
    read = [load(archive(tmp_path / "a.npz", x, **way)) for way in ways]
    assert len({data.fingerprint for data in read}) == 3
    assert [data.train.images.dtype for data in read] == [np.uint8, np.float32, np.float32]
    named = archive(tmp_path / "a.npz", x).holding(read[0].fingerprint)
    assert named.identity() == {"name": "arrays", "version": 1, "content": read[0].fingerprint}  # as ever


@pytest.mark.parametrize(("x", "axis"), [(NUMBERS, 0), (IMAGES, (0, 2, 3)), (TOKENS.astype(np.float64), 0)])
def test_floats_are_standardized_by_the_training_set(tmp_path: Path, x: np.ndarray, axis: Any) -> None:
    x = x.copy()
    x[:, 1] = 7.0  # a constant feature, or channel
    data = load(archive(tmp_path / "a.npz", x, standardize=True))
    mean, deviation = x.mean(axis, keepdims=True), x.std(axis, keepdims=True)
    expected = (x - mean) / np.where(deviation == 0, 1, deviation)
    assert np.allclose(data.train.images, expected, atol=1e-5)
    assert np.allclose(data.test.images, expected[:3], atol=1e-5)
    assert not data.train.images[:, 1].any()


@pytest.mark.parametrize(
    ("x", "arrays", "settings", "says"),
    [
        (np.where(NUMBERS > 40, np.nan, NUMBERS), {}, {}, r"x_train: sample \d+ holds nan; expected finite numbers"),
        (np.full((3, 2), 1e60), {}, {}, r"x_train: sample 0 holds 1e\+60; expected finite numbers of float32"),
        (NUMBERS, {"x_test": NUMBERS[:3, :4]}, {}, r"training images are \(7,\), test images \(4,\)"),
        (NUMBERS, {"x_test": TOKENS[:3, [0, 1, 2, 3, 4, 5, 0]]}, {}, "samples are float32, test samples int32"),
        (TOKENS - 50, {}, {}, "are read as tokens, which count from 0 .* it holds -49. For numbers: .*dtype: float32"),
        (TOKENS * 10**7, {}, {}, "are read as tokens"),
        (NUMBERS[:, :0], {}, {}, "there are no images"),
        (NUMBERS[:, 0], {}, {}, r"got \(12,\); or features \(N, D\) as floats, or tokens"),
        (IMAGES, {}, {}, r"with C of 1 or 3, got \(12, 5, 4, 6\)"),
        (IMAGES[:, :3], {}, {}, r"floats must be in \[0, 1\], .* or read them as they are: .*dtype: float32"),
        (pixels(12, (3, 4, 3)), {}, {"dtype": "float32"}, "with C of 1 or 3"),
        (NUMBERS, {}, {"groups": ["writer"]}, "groups: expected an array train_writer; it holds x_test"),
        (NUMBERS, {"train_w": np.zeros(5, int)}, {"groups": ["w"]}, r"expected train_w as \(12,\), got \(5,\)"),
        (NUMBERS, {"train_w": np.array([{}] * 12)}, {"groups": ["w"]}, "must hold numbers or strings, not object"),
    ],
)
def test_unfit_numbers_are_refused(
    tmp_path: Path, x: np.ndarray, arrays: dict[str, Any], settings: dict[str, Any], says: str
) -> None:
    with pytest.raises(UserError, match=says):
        load(archive(tmp_path / "a.npz", x, arrays, **settings))


def experiment(dataset: Any, **fields: Any) -> Any:
    return parse_experiment(
        {"dataset": dataset, "model": "mlp", "partition": "iid", "clients": 2, "E": 1, "batch_size": 2, **fields}
    )


@pytest.mark.parametrize(
    ("x", "fields", "says"),
    [
        (NUMBERS, {"model": "cnn"}, r"model: cnn on .*: the data are features \(7,\), .* use model: mlp"),
        (NUMBERS, {"model": "simple-vit"}, "which it does not take; use model: mlp"),
        (NUMBERS, {"model": "text"}, "which it does not take; use model: mlp"),
        (TOKENS, {"model": "mlp"}, r"sequences of 6 tokens \(of \d+\), which it does not take; use model: text"),
        (TOKENS, {"model": {"name": "text", "kernel": 9}}, "sequences of 6 tokens .* are too small"),
        (pixels(12, (1, 4, 6)), {"model": "text"}, "images of 1x4x6, which it does not take; use model: cnn or mlp"),
        (
            NUMBERS,
            {"augment": "flip-crop"},
            r"augment: flip-crop moves the pixels of images, and .* has samples of \(7,\)",
        ),
    ],
)
def test_models_that_do_not_take_the_data_are_refused(
    tmp_path: Path, x: np.ndarray, fields: dict[str, Any], says: str
) -> None:
    dataset = archive(tmp_path / "a.npz", x)
    wrong = experiment({"name": "arrays", "path": str(tmp_path / "a.npz")}, **fields)
    ((_, problem),) = misfits([wrong], dataset, load(dataset))
    with pytest.raises(UserError, match=says):
        raise problem


def test_clients_are_the_values_of_a_column(tmp_path: Path) -> None:
    writers = np.array(["ann", "bo", "bo", "cy", "bo", "ann", "cy", "bo", "dan", "ann", "bo", "ann"])
    arrays = {"train_writer": writers, "test_writer": np.array(["cy", "eve", "ann"]), "train_day": np.arange(12) // 6}
    arrays["test_day"] = np.array([9, 9, 9])
    dataset = archive(tmp_path / "a.npz", NUMBERS, arrays, groups=["day", "writer"])
    data = load(dataset)
    assert data.group_names == {"day": ("0", "1"), "writer": ("ann", "bo", "cy", "dan")}
    plain = {"name": "arrays", "path": str(tmp_path / "a.npz"), "groups": ["day", "writer"]}

    def shards(clients: int, partition: Any = "by:writer") -> Any:
        return shards_of(experiment(plain, partition=partition, clients=clients, min_size=1), data)

    four, two = shards(4), shards(2)
    assert [rows.tolist() for rows in four.train] == [[0, 5, 9, 11], [1, 2, 4, 7, 10], [3, 6], [8]]
    assert [rows.tolist() for rows in four.test] == [[2], [], [0], []]
    assert [rows.tolist() for rows in two.train] == [[0, 5, 9, 11], [1, 2, 4, 7, 10]]  # the largest two, in order
    days = shards(2, {"name": "by", "column": "day"})
    assert [rows.tolist() for rows in days.train] == [[*range(6)], [*range(6, 12)]]
    assert sorted(row for rows in days.test for row in rows) == [0, 1, 2]  # divided as the training set
    assert count_labels(data, days).train_KC.tolist() == [[2, 2, 2], [2, 2, 2]]
    for partition, clients, says in (
        ("by:writer", 5, "the column writer has 4 values in the training set; use at most clients: 4"),
        ("by:age", 2, r"does not group its samples by 'age'; its groups: day, writer.*groups: \[age\]"),
    ):
        with pytest.raises(UserError, match=says):
            shards(clients, partition)
    other = load(archive(tmp_path / "b.npz", NUMBERS, arrays, groups=["writer"]))
    assert other.fingerprint != data.fingerprint != load(archive(tmp_path / "c.npz", NUMBERS)).fingerprint


def test_features_and_tokens_train_from_the_file_to_predictions(tmp_path: Path) -> None:
    """The file of embeddings that was refused: (N, 64) float32 with five classes."""
    r, y = np.random.default_rng(0), np.arange(250) % 5
    features, tokens = r.normal(size=(250, 64)).astype(np.float32), r.integers(0, 20, (250, 8))
    features[np.arange(250), y] += 4
    tokens[:, 3] = 20 + y
    for x, model, wrong in ((features, "mlp", features[:2, :3]), (tokens, "text", tokens[:2] + 99)):
        path = tmp_path / f"{model}.npz"
        np.savez(path, x_train=x[:200], y_train=y[:200], x_test=x[200:], y_test=y[200:])
        fields = {"rounds": 20, "E": 4, "batch_size": 10, "lr": 0.5, "probes": ["features", "sharpness"], "norm": "ln"}
        place = {"dataset": f"arrays:{path}", "partition": "dirichlet:1", "clients": 4, "store": tmp_path / "store"}
        curve = flbench.run(model=model, device="cpu", **fields, **place)
        last = curve.iloc[-1]
        assert last["acc_global"] > 0.9
        found: pd.DataFrame = flbench.predict(last["run_id"], x[200:], store=tmp_path / "store")
        assert (found.idxmax(axis=1).astype(int) == y[200:]).mean() == last["acc_global"]
        with pytest.raises(UserError, match="images: expected"):
            flbench.predict(last["run_id"], wrong, store=tmp_path / "store")
