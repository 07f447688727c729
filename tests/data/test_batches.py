"""Which rows, and what they look like."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from flbench.data.batches import (
    CROP_PADDING,
    consecutive_rows,
    crop_and_flip,
    draw_crops,
    federated_rows,
    steps_of_epochs,
)


def rows_of(size: int, steps: int, batch_size: int, round: int = 0, client: int = 4) -> np.ndarray:
    rows = np.arange(100, 100 + size)
    return federated_rows(rows, seed=0, client=client, round=round, steps=steps, batch_size=batch_size)


def test_batches_are_without_replacement_and_the_remainder_is_dropped() -> None:
    batches = rows_of(size=10, steps=6, batch_size=3)
    assert batches.shape == (6, 3)
    for permutation in (batches[:3], batches[3:]):
        assert len(set(permutation.ravel())) == 9  # three batches of three, one row left out
    assert set(batches.ravel()) <= set(range(100, 110))


def test_a_small_client_fills_its_batch_from_consecutive_permutations() -> None:
    flat = rows_of(size=4, steps=3, batch_size=6).ravel()
    for start in range(0, 16, 4):
        assert set(flat[start : start + 4]) == {100, 101, 102, 103}


def test_every_round_and_client_has_its_own_batches() -> None:
    assert not np.array_equal(rows_of(50, 2, 5, round=0), rows_of(50, 2, 5, round=1))
    assert not np.array_equal(rows_of(50, 2, 5, client=0), rows_of(50, 2, 5, client=1))
    assert np.array_equal(rows_of(50, 2, 5), rows_of(50, 2, 5))


def test_fewer_steps_see_the_first_of_the_same_batches() -> None:
    assert np.array_equal(rows_of(50, 1, 5), rows_of(50, 8, 5)[:1])


@pytest.mark.parametrize(
    ("size", "epochs", "steps"),
    [(10, 10, 4), (10, 1, 1), (1, 1, 1), (1, 32, 1), (1, 33, 2), (31, 10, 10), (32, 10, 10), (33, 10, 10), (16, 3, 2)],
)
def test_local_epochs_use_all_samples_of_a_client_smaller_than_a_batch(size: int, epochs: int, steps: int) -> None:
    assert steps_of_epochs(size, epochs=epochs, batch_size=32) == steps
    if size < 32:
        seen = rows_of(size=size, steps=steps, batch_size=32).ravel()[: size * epochs]
        assert set(np.unique(seen, return_counts=True)[1]) == {epochs}  # every row once an epoch


def test_the_given_rows_are_not_modified() -> None:
    rows = np.arange(10)
    federated_rows(rows, seed=0, client=0, round=0, steps=2, batch_size=5)
    assert rows.tolist() == list(range(10))


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_centralized_batches_do_not_depend_on_the_length_of_rounds(steps: int) -> None:
    rows = np.arange(11)
    whole = consecutive_rows(rows, seed=1, first_step=0, steps=20, batch_size=3)
    cut = [consecutive_rows(rows, seed=1, first_step=first, steps=steps, batch_size=3) for first in range(0, 20, steps)]
    assert np.array_equal(np.concatenate(cut), whole)
    assert len(set(whole[:3].ravel())) == 9  # an epoch is three batches of a permutation


def test_crop_and_flip_against_plain_indexing() -> None:
    images = torch.arange(5 * 2 * 6 * 6).view(5, 2, 6, 6).to(torch.uint8)
    crops = draw_crops(5, seed=0, client=1, round=2)
    found = crop_and_flip(images, torch.from_numpy(crops))
    for k in range(5):
        padded = torch.zeros(2, 6 + 2 * CROP_PADDING, 6 + 2 * CROP_PADDING, dtype=torch.uint8)
        padded[:, CROP_PADDING:-CROP_PADDING, CROP_PADDING:-CROP_PADDING] = images[k]
        mirrored, top, left = crops[k]
        expected = padded[:, top : top + 6, left : left + 6]
        assert torch.equal(found[k], expected.flip(-1) if mirrored else expected)


def test_the_middle_crop_without_a_flip_is_the_image() -> None:
    images = torch.randint(0, 255, (3, 1, 8, 8), dtype=torch.uint8)
    still = torch.tensor([[0, CROP_PADDING, CROP_PADDING]] * 3)
    assert torch.equal(crop_and_flip(images, still), images)


def test_crops_are_spread_over_all_offsets_and_both_sides() -> None:
    crops = draw_crops(5000, seed=0, client=0, round=0)
    assert 0.47 < crops[:, 0].mean() < 0.53
    assert set(crops[:, 1:].ravel()) == set(range(2 * CROP_PADDING + 1))
