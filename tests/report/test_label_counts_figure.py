from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from flbench.data.shards import LabelCounts
from flbench.errors import UserError
from flbench.report.figures.label_counts import write_figure


def example(clients: int, classes: int) -> LabelCounts:
    draws = np.random.default_rng(0)
    train = draws.integers(0, 50, (clients, classes)) * draws.integers(0, 2, (clients, classes))
    return LabelCounts(tuple(f"class {n}" for n in range(classes)), train, train // 5)


@pytest.mark.parametrize(("clients", "classes"), [(1, 1), (10, 10), (3, 200), (100, 2)])
def test_a_png_has_content_for_any_number_of_clients_and_classes(tmp_path: Path, clients: int, classes: int) -> None:
    path = tmp_path / "new/picture.png"
    write_figure(example(clients, classes), "title", path)
    with Image.open(path) as image:
        width, height = image.size
        colours = len(image.convert("RGB").getcolors(2**24) or ())
    assert 300 < width < 3000
    assert 200 < height < 3000
    assert colours > 3


def test_an_empty_partition_is_drawn_too(tmp_path: Path) -> None:
    write_figure(
        LabelCounts(("a",), np.zeros((2, 1), np.int64), np.zeros((2, 1), np.int64)), "empty", tmp_path / "a.png"
    )


def test_the_same_counts_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg"):
        write_figure(example(3, 4), "a title", tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert b"<svg" in (tmp_path / "a.svg").read_bytes()


def test_an_unknown_suffix_or_an_unwritable_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"expected a name that ends in \.png, \.svg, \.pdf, got '\.jpg'"):
        write_figure(example(2, 2), "title", tmp_path / "a.jpg")
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"cannot write .*a\.png"):
        write_figure(example(2, 2), "title", tmp_path / "file/a.png")
