from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks import common, executors
from benchmarks.common import WORKLOADS, Case, Row, data_of, experiment_of
from benchmarks.executors import GRAPH, IN_MEMORY, LOADER, REFERENCE
from benchmarks.loader import loaders
from flbench.bench.loop import PlainLoop
from flbench.bench.timing import Spread, trainer_of
from flbench.data.random_images import RANDOM, random_data
from flbench.engine.setup import make_network
from flbench.models.flops import sample_flops
from tests.benchmarks.tiny import tiny
from tests.recording import rerun


@pytest.fixture(autouse=True)
def small_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "PRODUCT_SIDES", {"cpu": (32, 64), "cuda": (64,)})


@pytest.fixture
def three_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "runs_worth_fusing", lambda *_, **__: 3)


def measured(case: Case) -> tuple[list[Row], list[Row]]:
    """Return the rows of variants and of peaks."""
    rows = executors.measure(case)
    return [row for row in rows if "runs" in row], [row for row in rows if "runs" not in row]


@pytest.mark.usefixtures("three_together")
def test_every_variant_is_compared_with_every_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)  # threads that wait for each other are slow
    case = tiny(threads=2, repeats=2)
    rows, peaks = measured(case)
    assert [(row["variant"], row["cores"], row["runs"]) for row in rows] == [
        (REFERENCE, 1, 1),
        ("loop, pool of 2", 2, 1),
        ("stacked", 1, 1),
        ("fused, 3 runs", 1, 3),
        (IN_MEMORY, 2, 1),
        (LOADER, 2, 1),
    ]
    assert {(peak["precision"], peak["cores"]) for peak in peaks} == {("fp32", 1), ("fp32", 2)}
    of_peak = {peak["cores"]: peak["GFLOP/s"] for peak in peaks}
    flops = sample_flops(make_network(case.experiment, case.data, "cpu"), (1, 8, 8), backward=True)
    for row in rows:
        ms = row["ms a round and run"]
        assert ms.n == 2
        assert 0 < ms.min <= ms.median <= ms.max
        assert row["GFLOP/s"] == pytest.approx(flops * 2 * 2 * 32 / ms.median / 1e6)  # 2 clients, E = 2
        assert row["% of peak"] == pytest.approx(100 * row["GFLOP/s"] / of_peak[row["cores"]])
        assert {name for name in row if name.startswith("x ")} == {
            f"x {name}" for name in (REFERENCE, IN_MEMORY, LOADER)
        }
    assert rows[0][f"x {REFERENCE}"] == Spread(1.0, 1.0, 1.0, 2)


def test_one_thread_has_one_loop_and_fused_runs_fill_a_stack() -> None:
    assert [one.variant.name for one in executors.variants_of(tiny())][1:3] == ["stacked", "fused, 15 runs"]  # 30


@pytest.mark.usefixtures("three_together")
def test_variants_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU replaces the GPU; recorded rounds are launched by calling them again."""

    def make(experiment: Any, data: Any, device: str, **options: Any) -> Any:
        trainer = trainer_of(experiment, data, "cpu", **options)
        trainer.record = rerun if options["executor"] == "stacked" else None  # type: ignore[assignment]
        return trainer

    monkeypatch.setattr(executors, "trainer_of", make)
    monkeypatch.setattr(common, "trainer_of", make)
    monkeypatch.setattr(executors, "PlainLoop", lambda experiment, data, _, **how: PlainLoop(experiment, data, **how))
    variants = [one.variant for one in executors.variants_of(tiny(device="cuda", threads=4))]
    names = [REFERENCE, "stacked", GRAPH, "fused, 3 runs", IN_MEMORY, LOADER]
    assert [variant.name for variant in variants] == names
    for variant in variants:
        variant.work()


@pytest.mark.usefixtures("three_together")
def test_plain_loops_compute_in_the_engines_precision() -> None:
    rows, peaks = measured(tiny("precision=bf16", repeats=1))
    names = [REFERENCE, "stacked", "fused, 3 runs", IN_MEMORY, LOADER]
    assert {row["variant"]: row["precision"] for row in rows} == dict.fromkeys(names, "bf16")
    assert [peak["precision"] for peak in peaks] == ["bf16"]


def test_the_peak_is_the_fastest_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of products of 2 and 6 GFLOP in 1 s and 2 s, the second is the peak; in fp32 oneDNN's are among them."""
    made = executors.products("cpu", "fp32", 1)
    assert [each.name for each in made] == [
        "torch.mm of 32", "oneDNN's product of 32", "torch.mm of 64", "oneDNN's product of 64",
        "convolution of 64 channels",
    ]  # fmt: skip
    assert made[0].flops == 2 * 32**3
    assert made[-1].flops == sample_flops(_Convolution(), (64, 14, 14), backward=False) * 32
    some = [executors.Product(name, made[0].variant, flops) for name, flops in (("slow", 2e9), ("fast", 6e9))]
    some = [dataclasses.replace(each, variant=dataclasses.replace(each.variant, name=each.name)) for each in some]
    monkeypatch.setattr(executors, "products", lambda *_: some)
    monkeypatch.setattr(
        common,
        "take_turns",
        lambda variants, **_: {each.name: [2.0 if each.name == "fast" else 1.0] for each in variants},
    )
    _, (peak,) = measured(tiny())
    assert (peak["variant"], peak["GFLOP/s"]) == ("peak: fast", 3)


class _Convolution(nn.Module):
    """One convolution of 64 channels, as features and logits."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(64, 64, 5, bias=False)

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return images, self.layer(images)


@pytest.mark.parametrize(
    ("name", "flops"),
    [
        # Forward and gradients of the weights everywhere (2 products), of the inputs except the first layer's images.
        ("digits", 2 * (2 * 64 * 128 + 3 * 128 * 10)),
        ("mlp", 2 * (2 * 64 * 128 + 3 * 128 * 128 + 3 * 128 * 10)),
    ],
)
def test_flops_of_an_mlp(name: str, flops: int) -> None:
    experiment = experiment_of(WORKLOADS[name])
    network = make_network(experiment, data_of(experiment, None), "cpu")
    assert sample_flops(network, (1, 8, 8), backward=True) == flops


def test_flops_of_the_cnn_leave_out_the_gradient_of_the_images() -> None:
    experiment = experiment_of(WORKLOADS["cifar10"])
    data = random_data((3, 32, 32), 10, train=20)
    network = make_network(experiment, data, "cpu")
    first = next(module for module in network.modules() if isinstance(module, nn.Conv2d))
    unused = 2 * first.weight.numel() * 28 * 28  # one product as large as the first convolution, 5x5 without padding
    forward, both = (sample_flops(network, (3, 32, 32), backward=backward) for backward in (False, True))
    assert 3 * forward - both == unused
    assert all(leaf.grad is None for leaf in network.parameters())


def test_missing_files_are_replaced_by_random_images(tmp_path: Any) -> None:
    data = data_of(experiment_of(WORKLOADS["resnet18"]), tmp_path)
    assert (data.train.images.shape, data.classes, data.fingerprint) == ((50_000, 3, 32, 32), 10, RANDOM)


@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.parametrize("norm", ["none", "ln", "gn", "fn", "bn"])
def test_every_workload_is_an_experiment(name: str, norm: str) -> None:
    experiment = experiment_of(f"{WORKLOADS[name]} norm={norm} precision=bf16 clients=40")
    assert (experiment.norm.label().partition(":")[0], experiment.clients) == (norm, 40)


def test_loaders_have_the_batches_of_single_images() -> None:
    """A client that is smaller than a batch takes all of its steps, with all of its samples."""
    data = random_data((3, 32, 32), 10, train=12)
    experiment = experiment_of("dataset=cifar10 model=lenet bias=true clients=2 batch_size=4 E=3")
    torch.manual_seed(0)
    for rows, size in ((range(9), 4), (range(9, 12), 3)):
        (batches,) = loaders(experiment, data, [torch.tensor(rows).numpy()], "cpu")
        some = batches()
        for images, labels in (next(some) for _ in range(3)):
            assert images.shape == (size, 3, 32, 32) and labels.shape == (size,)
            assert images.dtype == torch.float32 and images.min() >= 0 and images.max() <= 1
    PlainLoop(experiment, data, source=loaders).round()


@pytest.mark.cuda
@pytest.mark.usefixtures("three_together")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU here")
def test_on_a_gpu_every_variant_is_compared_with_one_peak() -> None:
    rows, peaks = measured(tiny(device="cuda", threads=4))
    assert [row["variant"] for row in rows] == [REFERENCE, "stacked", GRAPH, "fused, 3 runs", IN_MEMORY, LOADER]
    assert len(peaks) == 1
