"""Image folders with more than images of two halves: hidden and foreign files, odd names, odd images, links."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from flbench.data.datasets import load
from flbench.data.layouts.image_folder import ImageFolder
from flbench.data.layouts.tinyimagenet import TinyImageNetZip
from flbench.errors import UserError
from flbench.registry import DATASETS
from tests.data.files import folder_set, pixels, write_folder, write_halves, write_parquet, write_tinyimagenet
from tests.data.test_layouts import tree

IMAGES = pixels(12, (3, 6, 5))


def test_hidden_folders_and_those_of_operating_systems_are_ignored(tmp_path: Path) -> None:
    write_folder(tmp_path, tree(cat=2, dog=1))
    before = load(folder_set(tmp_path))
    odd = (".ipynb_checkpoints", "@eaDir", "__MACOSX", "#recycle", "deep/.cache")
    write_folder(tmp_path, {f"train/{place}{name}/0.png": IMAGES[0] for name in odd for place in ("", "cat/")})
    write_folder(tmp_path, {"train/cat/@eaDir/00.png/thumb.jpg": IMAGES[0], "train/cat/.Trash/0.png": IMAGES[0]})
    (tmp_path / "train/cat/Thumbs.db").write_bytes(b"a cache of small images")
    (tmp_path / "train/deep/.cache/0.png").unlink()
    after = load(folder_set(tmp_path))
    assert (after.fingerprint, after.class_names) == (before.fingerprint, ("cat", "dog"))
    assert ImageFolder().counts(tmp_path) == (3, len(before.test.labels))


def test_hidden_files_are_no_images_of_tinyimagenet(tmp_path: Path) -> None:
    write_tinyimagenet(tmp_path / "tiny-imagenet-200", ["n01", "n02"])
    (tmp_path / "tiny-imagenet-200/train/n01/images/._n01_0.JPEG").write_text("no image")
    assert TinyImageNetZip().counts(tmp_path) == (4, 2)


@pytest.mark.slow
def test_labels_of_numbers_that_are_equal_do_not_depend_on_the_hash_seed(tmp_path: Path) -> None:
    """The folders 1 and 01 are one number. Their order was that of a set of names, which differs between processes."""
    write_folder(tmp_path, tree(**{"2": 1, "1": 1, "02": 1, "01": 1, "10": 1}))
    program = "import sys; from tests.data.files import folder_set; from flbench.data.datasets import load; "
    program += "print(*load(folder_set(sys.argv[1])).class_names)"
    found = set()
    for seed in "12":
        environment = {**os.environ, "PYTHONHASHSEED": seed, "FLBENCH_CACHE": str(tmp_path / seed)}
        command = [sys.executable, "-c", program, str(tmp_path)]
        found.add(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
    assert found == {"01 1 02 2 10\n"}


#: The letter é as one character and as two.
ONE, TWO = "caf\u00e9", "cafe\u0301"


@pytest.mark.parametrize(("train", "test"), [(ONE, TWO), (TWO, ONE)])
def test_a_class_is_the_same_in_both_forms_of_unicode(tmp_path: Path, train: str, test: str) -> None:
    write_folder(tmp_path, {f"train/{train}/0.png": IMAGES[0], "train/f/0.png": IMAGES[1]})
    write_folder(tmp_path, {f"test/{test}/0.png": IMAGES[0], "test/f/0.png": IMAGES[1]})
    data = load(folder_set(tmp_path))
    assert data.class_names == tuple(sorted((train, "f"))), "in the order of their names in train/, as ever"
    tested = {data.class_names[label]: data.test.images[row].tobytes() for row, label in enumerate(data.test.labels)}
    assert tested == {train: IMAGES[0].tobytes(), "f": IMAGES[1].tobytes()}
    (tmp_path / "classes.txt").write_text(f"f\n{test}\n")
    listed = load(folder_set(tmp_path))
    assert {*listed.train.labels.tolist()} == {*listed.test.labels.tolist()} == {0, 1}


def test_two_folders_of_one_name_are_refused(tmp_path: Path) -> None:
    write_halves(tmp_path, [f"{ONE}/0.png", f"{TWO}/0.png"])
    with pytest.raises(UserError, match=r"train/: the name caf.* is there twice, in two forms of Unicode"):
        load(folder_set(tmp_path))


def write_images(root: Path, image: Image.Image, name: str, **options: Any) -> Any:
    """Write the same image to both halves; return the data set."""
    for half in ("train", "test"):
        (root / half / "a").mkdir(parents=True, exist_ok=True)
        image.save(root / half / "a" / name, **options)
    return folder_set(root)


def png_of_16_bits(mode: int, channels: int) -> bytes:
    """Return a PNG of 4x4 pixels with 16 bits a channel, which Pillow reads and does not write."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    rows = b"".join(b"\0" + bytes(range(8 * channels)) for _ in range(4))
    header = struct.pack(">IIBBBBB", 4, 4, 16, mode, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("0.png", png_of_16_bits(0, 1)),
        ("0.png", png_of_16_bits(2, 3)),
        ("0.png", png_of_16_bits(4, 2)),
        ("0.png", png_of_16_bits(6, 4)),
        ("0.ppm", b"P6 4 4 65535\n" + bytes(96)),
        ("0.ppm", b"P3 1 1 4095\n1 2 3\n"),
    ],
)
def test_no_image_is_cut_to_8_bits(tmp_path: Path, name: str, content: bytes) -> None:
    for half in ("train", "test"):
        (tmp_path / half / "a").mkdir(parents=True)
        (tmp_path / half / "a" / name).write_bytes(content)
    for settings in ({}, {"size": 4}):
        with pytest.raises(UserError, match=rf"a/{name} has more than 8 bits a channel .*; convert it to 8 bits"):
            load(folder_set(tmp_path, **settings))
    for half in ("train", "test"):
        columns = {"image": [png_of_16_bits(2, 3)], "label": [0]}
        write_parquet(tmp_path / f"data/cifar10/{half}-00000-of-00001.parquet", columns)
    with pytest.raises(UserError, match="parquet, row 0 has more than 8 bits"):  # where the shape is known, too
        load(DATASETS.parse("cifar10"), tmp_path / "data")


def test_transparency_is_said(tmp_path: Path) -> None:
    """The pixels are those that torchvision's ImageFolder reads."""
    opaque = load(write_images(tmp_path / "opaque", Image.new("RGBA", (4, 4), (9, 8, 7, 255)), "0.png"))
    assert opaque.notes == ()
    image = Image.new("RGBA", (4, 4), (9, 8, 7, 255))
    image.putpixel((0, 0), (1, 2, 3, 0))
    dataset = write_images(tmp_path / "clear", image, "0.png")
    said = f"{tmp_path}/clear/train/a/0.png has transparent pixels, whose transparency is dropped, as in "
    for data in (load(dataset), load(dataset)):  # decoded, and from the cache
        assert data.notes == (f"{said}torchvision's ImageFolder (2 images in all)",)
        assert data.train.images[0, :, 0, 0].tolist() == [1, 2, 3]
    palette = Image.new("P", (4, 4))
    assert len(load(write_images(tmp_path / "palette", palette, "0.png", transparency=0)).notes) == 1


@pytest.mark.parametrize("name", ["0.jpg", "0.png", "0.webp"])
def test_an_orientation_that_is_not_applied_is_said(tmp_path: Path, name: str) -> None:
    image = Image.fromarray(pixels(1, (3, 6, 4))[0].transpose(1, 2, 0))
    exif = Image.Exif()
    exif[0x0112] = 6
    plain, turned = write_images(tmp_path / "plain", image, name), write_images(tmp_path / "t", image, name, exif=exif)
    assert load(turned).fingerprint == load(plain).fingerprint
    assert load(plain).notes == ()
    (note,) = load(turned).notes
    assert note.startswith(f"{tmp_path}/t/train/a/{name} has an EXIF orientation, which is not applied")
    write_images(tmp_path / "damaged", image, name, exif=b"Exif\0\0MM\0*\0\0\0\x08\xff\xff")
    assert load(folder_set(tmp_path / "damaged")).fingerprint == load(plain).fingerprint


def test_links_that_mix_the_halves_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folder(tmp_path, tree(cat=2, dog=1))
    write_folder(tmp_path / "elsewhere", {"fox/0.png": IMAGES[0], "hen/0.png": IMAGES[0]})
    train, test = tmp_path / "train", tmp_path / "test"
    for half in (train, test):  # how subsets are made
        (half / "fox").symlink_to(tmp_path / "elsewhere" / ("fox" if half == train else "hen"))
    (train / "dog/1.png").symlink_to(tmp_path / "elsewhere/fox/0.png")
    assert load(folder_set(tmp_path)).class_names == ("cat", "dog", "fox")
    cases = [
        (train / "cow", "../test/dog", f"{train}/cow and {test}/dog share images: a folder is a link; remove it"),
        (train / "cow", "dog", f"{train}/dog and {train}/cow share images"),
        (train / "cow", "..", "share images: a folder is a link; remove it"),
        (train / "dog/more", "../../test/dog", f"{train}/dog/more is a link to a folder, which is not followed"),
        (train / "dog/2.png", "../../test/dog/00.png", f"{train}/dog/2.png is a link to the image {test}/dog/00.png"),
        (test / "dog/2.png", "../../train/dog/00.png", f"{test}/dog/2.png is a link to the image {train}/dog/00.png"),
    ]
    for number, (link, target, says) in enumerate(cases):
        monkeypatch.setenv("FLBENCH_CACHE", str(tmp_path / f"cache{number}"))
        link.symlink_to(target)
        with pytest.raises(UserError) as caught:
            load(folder_set(tmp_path))
        assert says in str(caught.value)
        link.unlink()


def test_one_folder_cannot_be_both_halves(tmp_path: Path) -> None:
    write_folder(tmp_path, {"train/a/0.png": IMAGES[0], "train/b/0.png": IMAGES[1]})
    (tmp_path / "test").symlink_to("train")
    with pytest.raises(UserError, match=r"train/a and .*test/a share images|test/a and .*train/a share images"):
        load(folder_set(tmp_path))


def test_links_to_folders_are_refused_among_clients_and_without_test_images(tmp_path: Path) -> None:
    write_halves(tmp_path / "c", ["al/a/0.png", "al/b/0.png"])
    (tmp_path / "c/train/bo").symlink_to("../test/al")
    with pytest.raises(UserError, match="share images: a folder is a link"):
        load(folder_set(tmp_path / "c", clients=True))
    write_folder(tmp_path / "u", {f"a/{number}.png": IMAGES[number] for number in range(4)})
    (tmp_path / "u/b").symlink_to("a")
    with pytest.raises(UserError, match="share images: a folder is a link"):
        load(folder_set(tmp_path / "u", test_fraction=0.5))
