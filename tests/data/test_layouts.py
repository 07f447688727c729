from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from flbench.data.datasets import load
from flbench.errors import DataMissing, UserError
from tests.data.files import encode, folder_set, labels, pixels, write_folder, write_halves, write_parquet
from tests.limits import time_limit

IMAGES = pixels(12, (3, 6, 5))


def columns(images: np.ndarray = IMAGES, **more: Any) -> dict[str, Any]:
    return {"image": [encode(image) for image in images], "label": labels(len(images), 3), **more}


def write_set(root: Path, train: dict[str, Any], test: dict[str, Any] | None = None) -> None:
    write_parquet(root / "train-00000-of-00001.parquet", train)
    write_parquet(root / "test-00000-of-00001.parquet", columns(IMAGES[:3]) if test is None else test)


def test_encoded_bytes_in_a_column(tmp_path: Path) -> None:
    write_set(tmp_path, columns())
    data = load(folder_set(tmp_path))
    assert (data.train.images == IMAGES).all()
    assert (data.train.labels == labels(12, 3)).all()
    assert (data.test.images == IMAGES[:3]).all()
    assert (data.classes, data.class_names) == (3, ("0", "1", "2"))


@pytest.mark.parametrize("name", ["image", "img"])
def test_encoded_bytes_in_a_struct(tmp_path: Path, name: str) -> None:
    structs = [{"bytes": encode(image), "path": None} for image in IMAGES]
    write_set(tmp_path, {name: structs, "label": labels(12, 3)}, {name: structs[:3], "label": labels(3)})
    assert (load(folder_set(tmp_path)).train.images == IMAGES).all()


def test_shards_are_read_in_order_in_the_folder_and_below_data(tmp_path: Path) -> None:
    for shard in range(3):
        part = slice(4 * shard, 4 * shard + 4)
        write_parquet(
            tmp_path / f"data/train-0000{shard}-of-00003.parquet",
            {"image": [encode(i) for i in IMAGES[part]], "label": labels(12, 3)[part]},
        )
    write_parquet(tmp_path / "data/test-00000-of-00001.parquet", columns(IMAGES[:3]))
    assert (load(folder_set(tmp_path)).train.images == IMAGES).all()


def test_a_shard_of_more_images_than_bytes_is_refused(tmp_path: Path) -> None:
    """One image and one label, 200,000 times: they take 1 KB of the file."""
    import pyarrow as pa

    times = pa.array([0] * 200_000, pa.int32())
    image = pa.DictionaryArray.from_arrays(times, pa.array([encode(IMAGES[0])]))
    write_set(tmp_path, {"image": image, "label": times})
    with pytest.raises(UserError, match=r"train-00000-of-00001.parquet: its [\d,]+ bytes hold 200,000 images"):
        load(folder_set(tmp_path))


def test_missing_shards_are_reported(tmp_path: Path) -> None:
    write_parquet(tmp_path / "train-00000-of-00001.parquet", columns())
    with pytest.raises(DataMissing, match=r"parquet shards: incomplete, no test-\*\.parquet"):
        load(folder_set(tmp_path))
    write_set(tmp_path, columns())
    (tmp_path / "train-00000-of-00001.parquet").rename(tmp_path / "train-00001-of-00003.parquet")
    with pytest.raises(DataMissing, match=r"incomplete, no train-00000-of-00003.parquet, train-00002-of-00003.parquet"):
        load(folder_set(tmp_path))


def test_rows_are_sorted_by_index(tmp_path: Path) -> None:
    order = np.random.default_rng(3).permutation(12)
    write_set(tmp_path, {"image": [encode(IMAGES[i]) for i in order], "label": labels(12, 3)[order], "index": order})
    data = load(folder_set(tmp_path))
    assert (data.train.images == IMAGES).all()
    assert (data.train.labels == labels(12, 3)).all()


def test_domains_and_class_names_are_read(tmp_path: Path) -> None:
    write_set(tmp_path, columns(domain=["photo", "sketch"] * 6), columns(IMAGES[:3], domain=["sketch"] * 3))
    (tmp_path / "classes.txt").write_text("cat\ndog\nfox\n")
    data = load(folder_set(tmp_path))
    assert data.class_names == ("cat", "dog", "fox")
    assert data.domain_names == ("photo", "sketch")
    assert data.train.domains is not None
    assert data.train.domains.tolist() == [0, 1] * 6
    (tmp_path / "domains.txt").write_text("sketch\nphoto\n")
    assert load(folder_set(tmp_path)).domain_names == ("sketch", "photo")
    (tmp_path / "domains.txt").write_text("sketch\n")
    with pytest.raises(UserError, match=r"domain 'photo' is not among its domains \(sketch\)"):
        load(folder_set(tmp_path))


def test_class_names_are_read_from_the_schema(tmp_path: Path) -> None:
    write_set(tmp_path, columns())
    info = '{"info": {"features": {"label": {"names": ["cat", "dog", "fox"]}}}}'
    write_parquet(tmp_path / "train-00000-of-00001.parquet", columns(), {"huggingface": info})
    assert load(folder_set(tmp_path)).class_names == ("cat", "dog", "fox")


@pytest.mark.parametrize(
    ("train", "expected"),
    [
        ({"pixels": [b"x"], "label": [0]}, "has no column 'image'; its columns: pixels, label"),
        ({"image": [encode(IMAGES[0])]}, "has no column 'label'"),
        ({"image": [encode(IMAGES[0])], "label": ["cat"]}, "the column 'label' must hold integers, got 'cat'"),
        ({"image": [encode(IMAGES[0])], "label": [None]}, "the column 'label' must hold integers, got None"),
        ({"image": [encode(IMAGES[0])], "label": np.array([2**63], np.uint64)}, "'label' holds 9.* too large"),
        ({"image": ["text"], "label": [0]}, "the image column must hold bytes"),
        ({"image": [{"path": "a.png"}], "label": [0]}, "a struct without 'bytes'"),
        ({"image": [encode(IMAGES[0]), None], "label": [0, 0]}, "a row has no image bytes"),
        ({"image": [{"bytes": encode(IMAGES[0])}, None], "label": [0, 0]}, "a row has no image bytes"),
        ({"image": [encode(IMAGES[0]), b"junk"], "label": [0, 0]}, "parquet, row 1: cannot identify image file"),
        (columns(index=[*range(11), 4]), "the column 'index' holds 4 more than once"),
        ({"image": [encode(IMAGES[0])], "label": [-1]}, r"label -1 is not in 0\.\."),
        ({"image": [encode(IMAGES[0])], "label": [1]}, r"test: label 2 is not in 0\.\.1"),
    ],
)
def test_damaged_tables_are_reported(tmp_path: Path, train: dict[str, Any], expected: str) -> None:
    write_set(tmp_path, train)
    with pytest.raises(UserError, match=expected):
        load(folder_set(tmp_path))


def test_a_truncated_file_and_a_truncated_image_are_reported(tmp_path: Path) -> None:
    write_set(tmp_path, columns())
    path = tmp_path / "train-00000-of-00001.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UserError, match=r"cannot read .*train-00000-of-00001.parquet"):
        load(folder_set(tmp_path))
    big = encode(pixels(1, (3, 64, 64))[0])[:-2000]
    write_set(tmp_path, {"image": [big], "label": [0]}, {"image": [big], "label": [0]})
    with pytest.raises(UserError, match=r"row 0: .*truncated"):
        load(folder_set(tmp_path))


def tree(**sizes: int) -> dict[str, np.ndarray]:
    images = {}
    for half in ("train", "test"):
        for seed, (name, count) in enumerate(sizes.items()):
            for number, image in enumerate(pixels(count, (3, 6, 5), seed)):
                images[f"{half}/{name}/{number:02d}.png"] = image
    return images


def test_an_image_folder(tmp_path: Path) -> None:
    images = tree(dog=3, cat=2)
    write_folder(tmp_path, images)
    data = load(folder_set(tmp_path))
    assert data.class_names == ("cat", "dog")
    assert data.train.labels.tolist() == [0, 0, 1, 1, 1]
    expected = [images[f"train/{name}/{n:02d}.png"] for name, count in (("cat", 2), ("dog", 3)) for n in range(count)]
    assert (data.train.images == np.stack(expected)).all()


def test_an_image_folder_is_searched_at_any_depth_and_ignores_other_files(tmp_path: Path) -> None:
    write_folder(tmp_path, tree(cat=1))
    write_folder(tmp_path, {"train/cat/images/deep.PNG": IMAGES[0], "train/.hidden/a.png": IMAGES[0]})
    (tmp_path / "train/cat/notes.txt").write_text("no image")
    (tmp_path / "train/cat/._00.png").write_text("no image")
    assert len(load(folder_set(tmp_path)).train.labels) == 2


def test_classes_are_ordered_by_file_then_number_then_name(tmp_path: Path) -> None:
    write_folder(tmp_path / "numbers", tree(**{"10": 1, "9": 1}))
    assert load(folder_set(tmp_path / "numbers")).class_names == ("9", "10")
    write_folder(tmp_path / "named", tree(cat=1, dog=1))
    (tmp_path / "named/classes.txt").write_text("dog\ncat\nfox\n")
    data = load(folder_set(tmp_path / "named"))
    assert (data.class_names, data.train.labels.tolist()) == (("dog", "cat", "fox"), [1, 0])
    (tmp_path / "named/classes.txt").write_text("dog\nfox\n")
    with pytest.raises(UserError, match=r"train/cat/00.png: 'cat' is no class; known, .*: dog, fox"):
        load(folder_set(tmp_path / "named"))
    (tmp_path / "named/classes.txt").write_text("dog\ndog\n")
    with pytest.raises(UserError, match="every line must hold one name, and none twice"):
        load(folder_set(tmp_path / "named"))
    write_folder(tmp_path / "numbers", {"test/11/a.png": IMAGES[0]})
    with pytest.raises(UserError, match="'11' is no class"):  # it has no training images
        load(folder_set(tmp_path / "numbers"))


def test_images_of_different_sizes_need_a_size(tmp_path: Path) -> None:
    write_folder(tmp_path, tree(cat=2) | {"train/cat/wide.png": pixels(1, (3, 6, 9))[0]})
    with pytest.raises(UserError, match=r"differ in size: .*00.png is 5x6, .*wide.png is 9x6; set 'size'"):
        load(folder_set(tmp_path))
    resized = load(folder_set(tmp_path, size=4))
    assert resized.train.images.shape == (3, 3, 4, 4)
    assert resized.fingerprint != load(folder_set(tmp_path, size=3)).fingerprint


def test_grey_images_have_one_channel_unless_one_is_coloured(tmp_path: Path) -> None:
    grey = pixels(1, (1, 4, 4))[0]
    write_folder(tmp_path, {"train/a/0.png": grey, "test/a/0.png": grey})
    assert (load(folder_set(tmp_path)).train.images[0] == grey).all()
    write_folder(tmp_path, {"train/a/1.png": pixels(1, (3, 4, 4))[0]})
    mixed = load(folder_set(tmp_path)).train.images
    assert mixed.shape == (2, 3, 4, 4)
    assert (mixed[0] == grey).all()


def test_transparency_and_palettes_become_colours(tmp_path: Path) -> None:
    for half in ("train", "test"):
        (tmp_path / half / "a").mkdir(parents=True)
        Image.new("RGBA", (4, 4), (9, 8, 7, 255)).save(tmp_path / half / "a/0.png")
        Image.new("RGB", (4, 4), (9, 8, 7)).quantize().save(tmp_path / half / "a/1.png")
    images = load(folder_set(tmp_path)).train.images
    assert (images == np.array([9, 8, 7])[None, :, None, None]).all()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (os.mkfifo, "got a FIFO"),
        (Path.mkdir, "got a directory"),
        (lambda path: path.symlink_to("/dev/zero"), "got a device"),
        (lambda path: path.symlink_to(path.name), "got a link that leads nowhere"),
    ],
)
def test_only_regular_files_are_opened(tmp_path: Path, make: Callable[[Path], object], says: str) -> None:
    """A FIFO without a writer would be waited for, beyond SIGTERM."""
    write_halves(tmp_path / "images", ["a/0.png", "b/0.png"])
    odd = tmp_path / "images/train/a/1.png"
    make(odd)
    with time_limit(60), pytest.raises(UserError) as caught:
        load(folder_set(tmp_path / "images"))
    assert str(odd) in str(caught.value)
    assert says in str(caught.value) or "Too many levels of symbolic links" in str(caught.value)
    write_set(tmp_path / "shards", columns())
    shard = tmp_path / "shards/train-00000-of-00001.parquet"
    shard.unlink()
    make(shard)
    with time_limit(60), pytest.raises(UserError):
        load(folder_set(tmp_path / "shards"))


@pytest.mark.parametrize("below", ["", "train/"])
def test_a_folder_without_test_images_is_split(tmp_path: Path, below: str) -> None:
    images = {name.removeprefix("train/"): image for name, image in tree(cat=11, dog=4).items() if "train" in name}
    write_folder(tmp_path, {f"{below}{name}": image for name, image in images.items()})
    with pytest.raises(DataMissing, match="Images without a test set need 'test_fraction'"):
        load(folder_set(tmp_path))
    data = load(folder_set(tmp_path, test_fraction=0.2))
    assert data.test.labels.tolist() == [0, 0]  # of 11 and 4: the fifth and the tenth cat
    assert (data.test.images == np.stack([images["cat/04.png"], images["cat/09.png"]])).all()
    assert data.train.labels.tolist() == [0] * 9 + [1] * 4
    halved = load(folder_set(tmp_path, test_fraction=0.5))
    assert (len(halved.train.labels), len(halved.test.labels)) == (8, 7)
    assert load(folder_set(tmp_path, test_fraction=0.2, size=4)).test.images.shape == (2, 3, 4, 4)


def test_a_useless_test_fraction_is_refused(tmp_path: Path) -> None:
    write_folder(tmp_path, tree(cat=3))
    with pytest.raises(UserError, match="has test images in test/; leave out 'test_fraction'"):
        load(folder_set(tmp_path, test_fraction=0.5))
    write_folder(tmp_path / "b", {"cat/0.png": IMAGES[0], "cat/1.png": IMAGES[1]})
    with pytest.raises(UserError, match=r"test_fraction 0\.3 of each class are no images; raise it"):
        load(folder_set(tmp_path / "b", test_fraction=0.3))


def test_an_image_whose_name_is_not_utf8_is_named(tmp_path: Path) -> None:
    write_halves(tmp_path, ["a/0.png", "b/0.png"])
    os.link(tmp_path / "train/a/0.png", os.fsencode(tmp_path / "train/a") + b"/caf\xe9.png")
    with pytest.raises(UserError, match=r"train/a/caf\\xe9\.png': expected text in UTF-8; rename the file or folder"):
        load(folder_set(tmp_path))
