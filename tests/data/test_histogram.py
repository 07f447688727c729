from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from flbench.data.arrays import Arrays, Data
from flbench.data.histogram import Histogram, count, draw
from flbench.data.partition import split
from flbench.errors import UserError
from flbench.registry import PARTITIONS


def example(clients: int, classes: int) -> Histogram:
    draws = np.random.default_rng(0)
    train = draws.integers(0, 50, (clients, classes)) * draws.integers(0, 2, (clients, classes))
    return Histogram(tuple(f"class {n}" for n in range(classes)), train, train // 5)


def test_counts() -> None:
    half = Arrays(np.zeros((30, 1, 2, 2), np.uint8), np.arange(30) % 3)
    data = Data(half, half, 3, ("a", "b", "c"), 255, "0" * 16)
    shards = split(PARTITIONS.parse("classes:1"), data, clients=3, min_size=1, val_fraction=0, seed=0)
    histogram = count(data, shards)
    assert (np.sort(histogram.train_KC, axis=1) == [[0, 0, 10]] * 3).all()
    assert (histogram.test_KC == histogram.train_KC).all()
    assert histogram.class_names == ("a", "b", "c")


def test_clients_are_named_after_their_one_domain(tmp_path: Path) -> None:
    domains = np.repeat(np.arange(2), 15)
    half = Arrays(np.zeros((30, 1, 2, 2), np.uint8), np.arange(30) % 3, domains)
    data = Data(half, half, 3, ("a", "b", "c"), 255, "0" * 16, ("photo", "sketch"))

    def histogram(text: str) -> Histogram:
        return count(data, split(PARTITIONS.parse(text), data, clients=4, min_size=1, val_fraction=0, seed=0))

    by_domain = histogram("domain-classes:1-2")
    assert by_domain.client_names() == ("0 photo", "1 photo", "2 sketch", "3 sketch")
    assert histogram("iid").client_names() == ("0", "1", "2", "3")
    assert histogram("iid").domains_K == (("photo", "sketch"),) * 4
    assert example(2, 3).client_names() == ("0", "1")
    draw(by_domain, "by domain", tmp_path / "a.svg")


@pytest.mark.parametrize(("clients", "classes"), [(1, 1), (10, 10), (3, 200), (100, 2)])
def test_a_png_shows_something_whatever_the_shape(tmp_path: Path, clients: int, classes: int) -> None:
    path = tmp_path / "new/picture.png"
    draw(example(clients, classes), "title", path)
    with Image.open(path) as image:
        width, height = image.size
        colours = len(image.convert("RGB").getcolors(2**24) or ())
    assert 300 < width < 3000
    assert 200 < height < 3000
    assert colours > 3


def test_an_empty_partition_is_drawn_too(tmp_path: Path) -> None:
    draw(Histogram(("a",), np.zeros((2, 1), np.int64), np.zeros((2, 1), np.int64)), "empty", tmp_path / "a.png")


def test_a_file_is_the_same_each_time(tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg"):
        draw(example(3, 4), "a title", tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert b"<svg" in (tmp_path / "a.svg").read_bytes()


def test_files_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"expected a name that ends in \.png, \.svg, \.pdf, got '\.jpg'"):
        draw(example(2, 2), "title", tmp_path / "a.jpg")
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"cannot write .*a\.png"):
        draw(example(2, 2), "title", tmp_path / "file/a.png")
