from __future__ import annotations

import gzip
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from flbench.cli import data
from flbench.data import cache
from flbench.data.datasets import load
from flbench.errors import DataMissing, UserError
from flbench.registry import DATASETS
from tests.data.files import idx, labels, official, pixels, write_folder, write_idx, write_parquet, write_tinyimagenet


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("FLBENCH_DATA", str(tmp_path))


def call(*arguments: str) -> Any:
    return CliRunner().invoke(data.app, list(arguments))


@pytest.fixture
def mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """MNIST of 20 and 10 images, whose checksums and counts are the published ones."""
    write_idx(tmp_path / "mnist/MNIST/raw")
    dataset = official("mnist", tmp_path / "mnist/MNIST/raw")
    monkeypatch.setattr(DATASETS["mnist"], "layouts", dataset.layouts)
    monkeypatch.setattr(DATASETS["mnist"], "counts", (20, 10))
    return DATASETS.parse("mnist")


def test_list_as_json_and_as_a_table(mnist: Any, tmp_path: Path) -> None:
    load(mnist)
    rows = {row["name"]: row for row in json.loads(call("list", "--json").stdout)}
    names = ["digits", "cifar10", "cifar100", "tinyimagenet", "pacs", "fashion_mnist", "mnist"]
    names += [*(f"emnist-{split}" for split in ("balanced", "byclass", "letters", "digits")), "svhn", "folder"]
    assert list(rows)[: len(names)] == names
    assert rows["mnist"] == {
        "name": "mnist", "classes": 10, "image": [1, 28, 28], "counts": [20, 10], "official_counts": [20, 10],
        "found": str(tmp_path / "mnist"), "layout": "torchvision's idx files", "cached": True,
        "terms": "CC BY-SA 3.0 (usually given)",
    }  # fmt: skip
    assert (rows["digits"]["layout"], rows["digits"]["cached"]) == ("embedded", False)
    assert rows["cifar10"]["found"] is None
    lines = call("list").stdout.splitlines()
    assert any(line.startswith("cifar10") and "3x32x32" in line and "missing" in line for line in lines)
    assert any(line.startswith("mnist") and "  mnist (torchvision's idx files, decoded)" in line for line in lines)
    assert f"Data folder: {tmp_path} (set $FLBENCH_DATA or --data to change it)" in lines
    assert "Fetch what is missing: flbench data download NAME..." in lines
    for half in ("train", "test"):
        (path := tmp_path / f"pacs/{half}-0.parquet").parent.mkdir(exist_ok=True)
        path.write_bytes(b"junk")
    lines = call("list").stdout.splitlines()
    assert any(line.startswith("pacs") and "8,977/1,014" in line for line in lines), "damaged files do not end it"


def test_the_list_fits_a_terminal_of_80_columns(
    mnist: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(data, "wide_console", lambda: Console(width=80, force_terminal=True, no_color=True))
    far = tmp_path / ("y" * 100)  # a word that is too long is folded
    rows = [data._describe(cls, data.sources(tmp_path).get(name)) for name, cls in DATASETS.classes.items()]
    rows.append({**rows[0], "found": str(far), "official_counts": [100_000, 10_000]})
    data._print_list(rows, tmp_path)
    words = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    assert max(map(len, words.splitlines())) == 80 and "…" not in words
    for whole in ("emnist-balanced", "697,932/116,323", "3x64x64", "110,000", "non-commercial"):
        assert whole in words


def test_list_counts_the_images_that_are_there(mnist: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tinyimagenet(tmp_path / "tinyimagenet/tiny-imagenet-200", ["n01443537", "n01629819"], per_class=3)
    monkeypatch.setattr(DATASETS["mnist"], "counts", (15, 10))
    for half, rows in (("train", (7, 5)), ("test", (4,))):
        for shard, count in enumerate(rows):
            table = {"image": [b"not opened"] * count, "label": [0] * count}
            write_parquet(tmp_path / f"pacs/data/{half}-{shard:05d}-of-{len(rows):05d}.parquet", table)
    folder = {f"{half}/{label}/a.png": pixels(1, (3, 32, 32))[0] for half in ("train", "test") for label in "ab"}
    write_folder(tmp_path / "cifar100", folder)
    rows = {row["name"]: row for row in json.loads(call("list", "--json").stdout)}
    assert {name: row["counts"] for name, row in rows.items() if row["found"]} == {
        "digits": [1442, 355],
        "tinyimagenet": [6, 2],
        "pacs": [12, 4],
        "mnist": [20, 10],
        "cifar100": [2, 2],
    }
    assert rows["tinyimagenet"]["official_counts"] == [100_000, 10_000]
    assert rows["cifar10"]["counts"] == rows["cifar10"]["official_counts"] == [50_000, 10_000]  # is missing
    lines = {line.split()[0]: line for line in call("list").stdout.splitlines() if line}
    assert " 6/2 " in lines["tinyimagenet"] and ", a subset of 110,000)" in lines["tinyimagenet"]
    assert " 12/4 " in lines["pacs"] and ", a subset of 9,991)" in lines["pacs"]
    assert " 20/10 " in lines["mnist"] and "(torchvision's idx files, official: 15/10)" in lines["mnist"]
    assert "(embedded)" in lines["digits"]


def test_verify_whole_files(mnist: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    result = call("verify", "mnist", "digits")
    assert result.exit_code == 0
    assert "mnist: ok" in result.stdout and "20 train and 10 test images, fingerprint" in result.stdout
    official = DATASETS["digits"].official
    digits = f"digits: ok, scikit-learn (embedded)\n  1,442 train and 355 test images, fingerprint {official}"
    assert digits in result.stdout
    assert list((cache.cache_root() / "decoded").iterdir()) == [], "it leaves no files"
    monkeypatch.setattr(DATASETS["mnist"], "official", "0123456789abcdef")
    reports = json.loads(call("verify", "--json").stdout)  # of all that are found
    assert [(one["name"], one["counts"], one["problems"]) for one in reports] == [
        ("digits", [1442, 355], []),
        ("mnist", [20, 10], []),
    ]
    assert "not the official arrays (fingerprint 0123456789abcdef)" in str(reports[1]["notes"])


def exchange_labels(folder: Path) -> None:
    (folder / "mnist/MNIST/raw/t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(labels(10)[::-1])))


def damage_the_copy(folder: Path) -> None:
    load(DATASETS.parse("mnist"))
    (path,) = (folder / "cache/decoded/mnist").glob("*/train-images.npy")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def write_broken_image(folder: Path) -> None:
    write_folder(folder / "photos", {f"{half}/a/a.png": pixels(1, (3, 4, 4))[0] for half in ("train", "test")})
    (folder / "photos/test/a/b.png").write_bytes(b"junk")


@pytest.mark.parametrize(
    ("name", "damage", "says"),
    [
        ("mnist", exchange_labels, "mnist: DAMAGED, .*t10k-labels-idx1-ubyte.gz is damaged: its md5 is"),
        ("mnist", damage_the_copy, "its decoded copy .*decoded/mnist/.* differs from the files; delete that folder"),
        ("mnist", lambda _: setattr(DATASETS["mnist"], "counts", (60_000, 10)), "60,000 train images, found 20"),
        ("folder:{}/photos", write_broken_image, "test/a/b.png"),
    ],
)
def test_verify_finds_damage(
    mnist: Any, tmp_path: Path, name: str, damage: Callable[[Path], object], says: str
) -> None:
    damage(tmp_path)
    result = call("verify", name.format(tmp_path))
    assert result.exit_code == 1
    assert re.search(says, result.stdout, re.DOTALL)


def test_unknown_names_are_reported() -> None:
    assert isinstance(call("verify", "mnist").exception, DataMissing)
    for arguments, message in (
        (("verify", "cifar"), "unknown dataset 'cifar'"),
        (("verify", "folder"), "folder: path: a value is required here"),
        (("download", "digits"), "digits cannot be downloaded: it is part of scikit-learn, no download is needed"),
        (("download", "folder:x"), "folder cannot be downloaded: it consists of the files that you name"),
    ):
        error = call(*arguments).exception
        assert isinstance(error, UserError)
        assert message in str(error)


def test_download_writes_where_load_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchvision import datasets

    def fetch(self: Any, root: str, download: bool) -> None:
        assert download
        write_idx(Path(root) / "MNIST/raw")

    monkeypatch.setattr(datasets.MNIST, "__init__", fetch)
    result = call("download", "mnist")
    assert result.exit_code == 0
    assert result.stdout == f"mnist: fetched and checked, in {tmp_path}/mnist\n"
    monkeypatch.setattr(DATASETS["mnist"], "layouts", official("mnist", tmp_path / "mnist/MNIST/raw").layouts)
    assert len(load(DATASETS.parse("mnist")).train.labels) == 20


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a web server for a folder."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


def test_torchvision_fetches_and_refuses_files_with_other_checksums(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torchvision import datasets

    write_idx(tmp_path / "mirror")
    with served(tmp_path / "mirror") as address:
        monkeypatch.setattr(datasets.MNIST, "mirrors", [address])
        error = call("download", "mnist").exception
        assert isinstance(error, UserError)
        assert "File not found or corrupted" in str(error)
        monkeypatch.setattr(
            datasets.MNIST, "resources", list(official("mnist", tmp_path / "mirror").layouts[0].md5.items())
        )
        assert call("download", "mnist").exit_code == 0
    assert (tmp_path / "mnist/MNIST/raw/train-images-idx3-ubyte").exists()


def test_downloads_that_fail_are_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchvision import datasets

    monkeypatch.setattr(datasets.CIFAR10, "url", "http://127.0.0.1:1/nowhere.tar.gz")
    error = call("download", "cifar10").exception
    assert isinstance(error, UserError)
    assert str(error).startswith(f"cannot download cifar10 into {tmp_path}/cifar10: ")
    assert "on a machine that has it, and copy its folder cifar10/" in str(error)
    (tmp_path / "file").touch()
    error = call("download", "mnist", "--data", str(tmp_path / "file")).exception
    assert isinstance(error, UserError) and f"cannot write to {tmp_path}/file/mnist" in str(error)
