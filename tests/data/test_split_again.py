"""``test_fraction`` joins the training and the test set of a data set and splits them again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from flbench.config import parse_experiment
from flbench.config.components import content_of
from flbench.data.arrays import Arrays, Data
from flbench.data.datasets import load, verify
from flbench.data.layouts.base import BATCH
from flbench.data.split_again import split_again
from flbench.errors import InvalidComponent
from flbench.papers.published_numbers import other_content
from flbench.registry import DATASETS


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLBENCH_CACHE", str(tmp_path / "cache"))


def pictures(data: Data) -> list[tuple[bytes, int]]:
    halves = (data.train, data.test)
    return sorted(
        (bytes(image), label) for half in halves for image, label in zip(half.images, half.labels, strict=True)
    )


@pytest.mark.parametrize("share", [0.25, 0.1])
def test_every_image_keeps_its_label_and_the_split_is_stratified(share: float) -> None:
    whole, again = load(DATASETS.parse("digits")), load(DATASETS.parse({"name": "digits", "test_fraction": share}))
    assert pictures(again) == pictures(whole)
    sizes, test = (np.bincount(labels) for labels in (np.r_[whole.train.labels, whole.test.labels], again.test.labels))
    assert (test == np.floor(sizes * share)).all()
    assert (again.white, again.class_names) == (16, whole.class_names)
    assert again.fingerprint not in (whole.fingerprint, DATASETS["digits"].official)


def test_rows_come_from_both_halves_in_order() -> None:
    """Every fourth image of a class is a test image; blocks are of bounded size, and domains follow their images."""
    count, first = 3 * BATCH, 2 * BATCH + 3
    labels, images = np.arange(count) % 2, np.arange(count, dtype=np.int64)
    pixels = np.stack([images % 256, images // 256], 1).astype(np.uint8)[:, None, None]
    halves = [Arrays(pixels[rows], labels[rows], images[rows]) for rows in (slice(first), slice(first, None))]
    found = split_again(Data(*halves, 2, ("a", "b"), 255, ""), 0.25)
    expected = {"test": images % 8 >= 6, "train": images % 8 < 6}
    for half, mask in expected.items():
        split = getattr(found, half)
        blocks = list(split.blocks)
        assert max(len(block.rows) for block in blocks) <= BATCH
        assert (np.concatenate([block.rows for block in blocks]) == np.arange(mask.sum())).all()
        assert (np.concatenate([block.images for block in blocks]) == pixels[mask]).all()
        assert (split.labels == labels[mask]).all()
        assert split.domains is not None
        assert (split.domains == images[mask]).all()


def test_a_set_that_is_split_again_is_another_one() -> None:
    """It has no official content, nor declared counts; without the field nothing of the id changes."""
    plain, again = (parse_experiment({"dataset": {"name": "digits", **more}}) for more in ({}, {"test_fraction": 0.25}))
    assert "test_fraction" not in plain.to_json()["dataset"]
    assert plain.run_id != again.run_id
    dataset = DATASETS.parse({"name": "digits", "test_fraction": 0.25})
    assert (dataset.official, dataset.counts, DATASETS["digits"].counts) == (None, None, (1442, 355))
    assert content_of(again.to_json()) is None
    assert content_of(plain.to_json()) == DATASETS["digits"].official
    named = dataset.holding(load(dataset).fingerprint)
    assert content_of(again.having(dataset=named).to_json()) == named.content
    assert not verify(named).problems
    assert "split again, 0.25 for the test" in str(other_content(again, named.content, "1351/446"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("share", "expected"),
    [(0, "greater than 0"), (1, "less than 1"), (-0.5, "greater than 0"), ("quarter", "expected a number")],
)
def test_a_share_is_between_0_and_1(share: object, expected: str) -> None:
    with pytest.raises(InvalidComponent, match=expected):
        DATASETS.parse({"name": "digits", "test_fraction": share})
