from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flbench.native import build
from flbench.native.build import Native, native

llvm = pytest.importorskip("llvmlite.binding")
pytest.importorskip("numba")

PAD = 16  # floats of the widest register

#: Rows, columns and length of the sum: edges in every direction, and none.
SIZES = [(1, 1, 1), (6, 64, 7), (13, 16, 5), (10, 32, 128), (23, 100, 3), (25, 145, 9), (64, 15, 40), (3, 33, 2)]


class Features(dict[str, bool]):
    """Those of this CPU that a smaller one has, too; ``flatten`` is what the compiler may use."""

    def flatten(self) -> str:
        return ",".join(f"{'+' if on else '-'}{name}" for name, on in self.items() if name != "neon")


@pytest.fixture(params=["this CPU", "8 floats", "4 floats"])
def compiled(request: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Native]:
    """``products.one_product`` as this CPU and CPUs with narrower registers compile it."""
    yield compiled_for(request.param, monkeypatch)


def compiled_for(
    cpu: str, monkeypatch: pytest.MonkeyPatch, module: str = "products", name: str = "one_product"
) -> Native:
    features = Features(llvm.get_host_cpu_features())
    if cpu != "this CPU":
        if not features.get("avx2"):
            pytest.skip("needs AVX2")
        features.update({name: False for name in features if name.startswith("avx512")})
    if cpu == "4 floats":
        features.update({"avx2": False, "neon": True})
    monkeypatch.setattr(llvm, "get_host_cpu_features", lambda: features)
    for other in [other for other in sys.modules if other.startswith("flbench.native.") and other != build.__name__]:
        monkeypatch.delitem(sys.modules, other)
    function = native.__wrapped__(module, name)
    assert function is not None
    return function


def product(
    function: Native, a: Any, b: Any, start: Any = None, c: Any = None, floor: float = -np.inf, rate: float = -1.0
) -> Any:
    (m, k), n = a.shape, b.shape[1]
    wide = np.full((k, n + PAD), np.nan, np.float32)  # what is beyond b never counts
    wide[:, :n] = b
    start = np.zeros((m, 1), np.float32) if start is None else start
    out = np.full((m, n), 7, np.float32) if c is None else c.copy()
    kept = np.pad(out, ((0, 1), (0, 3)), constant_values=7)
    floats = np.array([floor, rate], np.float32)
    strides = [a.strides[0] // 4, a.strides[1] // 4]
    addresses = [array.ctypes.data for array in (a, wide, start, kept, floats)]
    arguments = [m, n, k, addresses[0], *strides, addresses[1], n + PAD, addresses[2], 1, addresses[3], n + 3]
    all_of_them = np.array([*arguments, addresses[4]])
    function(all_of_them.ctypes.data)
    assert (kept[m:] == 7).all() and (kept[:, n:] == 7).all()  # nothing is written beyond the product
    return kept[:m, :n].copy()


def normal(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def chain(a: Any, b: Any, start: Any) -> Any:
    """The product as one chain of fused multiply-adds, each rounded once; a rare double rounding apart."""
    out = np.broadcast_to(start, (a.shape[0], b.shape[1])).astype(np.float64)
    for k in range(a.shape[1]):
        out = (out + a[:, [k]].astype(np.float64) * b[[k]].astype(np.float64)).astype(np.float32).astype(np.float64)
    return out.astype(np.float32)


@pytest.mark.parametrize("size", SIZES)
def test_a_product_is_one_chain_for_each_element(compiled: Native, size: tuple[int, int, int]) -> None:
    """So its bits are the same on all widths, and for rows and columns alone."""
    m, n, k = size
    a, b, start = normal(0, m, k), normal(1, k, n), normal(2, m, 1)
    whole = product(compiled, a, b, start)
    np.testing.assert_array_equal(whole, chain(a, b, start))
    np.testing.assert_array_equal(product(compiled, np.asfortranarray(a), b, start), whole)
    np.testing.assert_array_equal(product(compiled, a[-1:], b[:, -1:], start[-1:]), whole[-1:, -1:])
    np.testing.assert_array_equal(product(compiled, a, b, start, floor=0.0), np.maximum(whole, 0))


@pytest.mark.parametrize("size", SIZES)
def test_a_product_moves_weights_as_torch_does(compiled: Native, size: tuple[int, int, int]) -> None:
    torch = pytest.importorskip("torch")
    m, n, k = size
    a, b, w = normal(0, m, k), normal(1, k, n), normal(3, m, n)
    moved = torch.from_numpy(w.copy()).add_(torch.from_numpy(product(compiled, a, b)), alpha=-0.03)
    np.testing.assert_array_equal(product(compiled, a, b, c=w, rate=0.03), moved.numpy())


def test_not_a_number_stays_one(compiled: Native) -> None:
    a, b = normal(0, 7, 4), normal(1, 4, 9)
    a[3, 2] = np.nan
    out = product(compiled, a, b, floor=0.0)
    assert np.isnan(out[3]).all() and not np.isnan(np.delete(out, 3, 0)).any()


def test_code_is_compiled_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr(build, "user_cache", lambda: tmp_path)
    assert native.__wrapped__("products", "one_product") is not None
    (stored,) = (tmp_path / "native").glob("*.o")
    code = stored.read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(build, "_compiled", lambda *_: pytest.fail("compiled again"))
        assert native.__wrapped__("products", "one_product") is not None
    stored.write_bytes(code[:-1])  # damaged: it is compiled again, and nothing of it runs
    assert native.__wrapped__("products", "one_product") is not None
    assert len(stored.read_bytes()) == len(code)


@pytest.mark.slow
def test_processes_may_start_together(tmp_path: Path) -> None:
    program = "from flbench.native.build import native; assert native('products', 'one_product')"
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    processes = [subprocess.Popen([sys.executable, "-c", program], env=environment) for _ in range(3)]
    assert [process.wait() for process in processes] == [0, 0, 0]
    assert len([*tmp_path.rglob("*.o")]) == 1


def test_where_nothing_can_be_stored_each_process_compiles(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(build, "user_cache", lambda: tmp_path / "file")
    assert native.__wrapped__("products", "one_product") is not None


@pytest.mark.parametrize("missing", ["llvmlite.binding", "numba"])
def test_without_numba_there_is_one_line(
    missing: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(build, "user_cache", lambda: tmp_path)
    monkeypatch.setitem(sys.modules, missing, None)
    with caplog.at_level(logging.WARNING):
        assert native.__wrapped__("products", "one_product") is None
    (line,) = caplog.messages
    assert "by torch alone" in line and "\n" not in line
