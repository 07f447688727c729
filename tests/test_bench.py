from __future__ import annotations

import dataclasses
import importlib.util
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from flbench.bench import compare as compare_module
from flbench.bench import measure
from flbench.bench.compare import GRAPH, IN_MEMORY, LOADER, REFERENCE, Comparison, Settings, compare
from flbench.bench.measure import Spread, Variant, take_turns
from flbench.bench.methods import method_costs
from flbench.bench.plain_pytorch import PlainLoop, Training, augment
from flbench.bench.probes import EVERY, probe_costs
from flbench.bench.workloads import WORKLOADS, Workload, data_for, random_data
from flbench.data.arrays import Arrays, Data
from flbench.engine.federated import FederatedTrainer
from flbench.engine.setup import make_network, make_trainer
from flbench.models.flops import sample_flops
from flbench.worker import group_key
from tests.recording import rerun

TINY = Workload(
    "tiny", "digits, a tiny MLP", {"model": {"name": "mlp", "widths": [4]}, "clients": 2, "local_steps": 2}, rounds=1
)


@pytest.fixture(autouse=True)
def small_products(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setattr(measure, "PRODUCT_SIDES", {"cpu": (32, 64), "cuda": (64,)})


def silent(what: str, done: int, total: int) -> None:
    """Show no progress."""


def measured(workload: Workload = TINY, *, scaling: bool = False, **settings: Any) -> Comparison:
    return compare(workload, Settings(**{"repeats": 2, **settings}), scaling=scaling, note=silent)


def test_every_variant_is_compared_with_every_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)  # threads that wait for each other are slow
    done = measured(threads=2, fuse=3)
    assert [(row.variant, row.cores, row.runs) for row in done.rows] == [
        (REFERENCE, 1, 1),
        ("loop, pool of 2", 2, 1),
        ("stacked", 1, 1),
        ("fused, 3 runs", 1, 3),
        (IN_MEMORY, 2, 1),
        (LOADER, 2, 1),
    ]
    assert {(peak.precision, peak.cores, peak.n) for peak in done.peaks} == {("fp32", 1, 2), ("fp32", 2, 2)}
    peaks = {peak.cores: peak.flops_per_s for peak in done.peaks}
    for row in done.rows:
        assert row.rounds_per_s.n == 2
        assert 0 < row.rounds_per_s.min <= row.rounds_per_s.median <= row.rounds_per_s.max
        assert row.client_steps_per_s == pytest.approx(4 * row.rounds_per_s.median)  # 2 clients, E = 2
        assert row.samples_per_s == pytest.approx(32 * row.client_steps_per_s)
        assert row.flops_per_s == pytest.approx(done.flops_per_sample * row.samples_per_s)
        assert row.peak_fraction == pytest.approx(row.flops_per_s / peaks[row.cores])
        assert set(row.speedup) == {REFERENCE, IN_MEMORY, LOADER}
    assert done.rows[0].speedup[REFERENCE] == Spread(1.0, 1.0, 1.0, 2)
    assert (done.auto, done.clients, done.local_steps, done.batch_size) == ("stacked", 2, 2, 32)
    assert done.scaling == []


def test_one_thread_has_one_loop_and_fused_runs_fill_a_stack() -> None:
    assert [row.variant for row in measured().rows][1:3] == ["stacked", "fused, 15 runs"]  # 30 clients


@pytest.fixture
def projection(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script benchmarks/bench_projection.py as a module."""
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "benchmarks")
    path = Path(__file__).parents[1] / "benchmarks" / "bench_projection.py"
    spec = importlib.util.spec_from_file_location("bench_projection", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["bench_projection"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_projection_of_10_000_rounds(projection: Any) -> None:
    for runs in (1, 2):
        group = [TINY.experiment(seed=seed) for seed in range(runs)]
        done = projection.project(group, data_for(group[0], None), "cpu", 1)
        expected = 10_000 * done.round_s.median + 100 * runs * done.evaluation_s.median
        assert (done.runs, done.peak_bytes, done.seconds) == (runs, None, pytest.approx(expected))


def test_projected_groups_of_table_10_hold_all_its_runs(projection: Any) -> None:
    groups = list(projection.table10_groups("tf32"))
    runs = [run for _, group in groups for run in group]
    assert len(groups) == 27 and len({run.run_id for run in runs}) == 81
    assert all(len({group_key(run.to_json()) for run in group}) == 1 for _, group in groups)
    assert {run.precision for run in runs} == {"tf32"}
    assert "fedavg, none, E=1" in dict(groups)


def test_variants_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU replaces the GPU; recorded rounds are launched by calling them again."""

    def make(experiment: Any, data: Data, *, device: str, **options: Any) -> Any:
        trainer, numerics = make_trainer(experiment, data, device="cpu", **options)
        trainer.record = rerun if options["executor"] == "stacked" else None
        return trainer, numerics

    monkeypatch.setattr(compare_module, "make_trainer", make)
    monkeypatch.setattr(compare_module, "make_network", lambda *given: make_network(*given[:2], "cpu"))
    monkeypatch.setattr(compare_module, "products", lambda _, *key: measure.products("cpu", *key))
    on_cpu = partial(Training.of, device="cpu")
    monkeypatch.setattr(Training, "of", lambda experiment, _: on_cpu(experiment))
    monkeypatch.setattr(compare_module, "runs_worth_fusing", lambda *_, **__: 2)
    as_cifar10 = dataclasses.replace(TINY, name="cifar10", fields={**TINY.fields, "clients": 10}, gpu_rounds=2)
    done = measured(as_cifar10, device="cuda", repeats=1)
    assert [row.variant for row in done.rows][1:4] == ["stacked", "stacked, one graph a round", "fused, 2 runs"]
    assert done.rounds == 2


def test_a_gpu_gets_the_workloads_in_full() -> None:
    on_cpu, on_gpu = (WORKLOADS["resnet18"].experiment(device) for device in ("cpu", "cuda"))
    assert [(e.clients, e.local_steps) for e in (on_cpu, on_gpu)] == [(4, 1), (10, 10)]
    assert WORKLOADS["resnet18"].turn("cuda") == 3


def test_plain_loops_stay_in_fp32_if_the_engine_computes_in_bf16() -> None:
    done = measured(precision="bf16", fuse=1)
    assert {row.variant: row.precision for row in done.rows} == {
        REFERENCE: "bf16", "stacked": "bf16", IN_MEMORY: "fp32", LOADER: "fp32"
    }  # fmt: skip
    assert [peak.precision for peak in done.peaks] == ["bf16", "fp32"]


def test_the_peak_is_the_fastest_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of products of 2 and 6 GFLOP in 1 s and 2 s, the second is the peak; in fp32 oneDNN's are among them."""
    made = measure.products("cpu", "fp32", 1)
    assert [each.name for each in made] == [
        "torch.mm of 32", "oneDNN's product of 32", "torch.mm of 64", "oneDNN's product of 64",
        "convolution of 64 channels",
    ]  # fmt: skip
    assert made[0].flops == 2 * 32**3 and made[0].variant.rounds == 4
    assert made[-1].flops == sample_flops(_Convolution(), (64, 14, 14), backward=False) * 32
    some = [measure.Product(name, made[0].variant, flops) for name, flops in (("slow", 2e9), ("fast", 6e9))]
    some = [dataclasses.replace(each, variant=dataclasses.replace(each.variant, name=each.name)) for each in some]
    monkeypatch.setattr(compare_module, "products", lambda *_: some)
    monkeypatch.setattr(
        compare_module,
        "take_turns",
        lambda variants, **_: {each.name: [2.0 if each.name == "fast" else 1.0] for each in variants},
    )
    (peak,) = measured(fuse=1, repeats=1).peaks
    assert (peak.by, peak.flops_per_s) == ("fast", 3e9)


class _Convolution(nn.Module):
    """One convolution of 64 channels, as features and logits."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(64, 64, 5, bias=False)

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return images, self.layer(images)


def test_scaling_series_start_at_the_workload() -> None:
    points = measured(scaling=True, fuse=1, repeats=1).scaling
    assert [(point.series, point.value) for point in points] == [
        *(("clients", n) for n in (2, 4, 8)), *(("local steps", n) for n in (2, 4, 8)),
        *(("fused runs", n) for n in (1, 2, 4)),
    ]  # fmt: skip
    assert all(point.cost == Spread(1.0, 1.0, 1.0, 1) for point in points[::3])
    steps = [round(point.client_steps_per_s * point.seconds.median, 6) for point in points]
    assert steps == [4, 8, 16] * 3  # client steps in a round of all runs


def test_variants_take_turns_and_settings_are_restored() -> None:
    calls: list[tuple[str, int]] = []

    def variant(name: str, **options: int) -> Variant:
        return Variant(name, lambda: calls.append((name, torch.get_num_threads())), "fp32", **options)

    turns: list[tuple[str, int, int]] = []
    before = torch.get_num_threads()
    variants = [variant("a", rounds=2, torch_threads=before + 1), variant("b")]
    seconds = take_turns(variants, repeats=2, note=lambda *turn: turns.append(turn))
    a, b = ("a", before + 1), ("b", 1)
    assert calls == [a, b, a, a, b, a, a, b]  # one round each to warm up
    assert torch.get_num_threads() == before
    assert {name: len(each) for name, each in seconds.items()} == {"a": 2, "b": 2}
    assert turns == [(name, number, 6) for number, name in enumerate("ababab")]


def test_threads_are_restored_after_a_failure() -> None:
    before = torch.get_num_threads()
    broken = Variant("broken", lambda: 1 / 0, "fp32", torch_threads=before + 1)
    with pytest.raises(ZeroDivisionError):
        take_turns([broken], repeats=1, note=silent)
    assert torch.get_num_threads() == before


def test_seconds_are_those_of_one_round() -> None:
    seconds = take_turns([Variant("nap", lambda: time.sleep(0.01), "fp32", rounds=3)], repeats=1, note=silent)
    assert seconds["nap"][0] >= 0.01


def test_tf32_settings_are_restored() -> None:
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    measured(precision="tf32", fuse=1, repeats=1)
    assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == before


def test_spread() -> None:
    assert Spread.of([3.0, 1.0, 2.0]) == Spread(median=2.0, min=1.0, max=3.0, n=3)
    assert Spread.of([3.0, 1.0]).times(10) == Spread(20.0, 10.0, 30.0, 2)


@pytest.mark.parametrize(
    ("name", "flops"),
    [
        # Forward and gradients of the weights everywhere (2 products), of the inputs except the first layer's images.
        ("digits", 2 * (2 * 64 * 128 + 3 * 128 * 10)),
        ("mlp", 2 * (2 * 64 * 128 + 3 * 128 * 128 + 3 * 128 * 10)),
    ],
)
def test_flops_of_an_mlp(name: str, flops: int) -> None:
    experiment = WORKLOADS[name].experiment()
    network = make_network(experiment, data_for(experiment, None), "cpu")
    assert sample_flops(network, (1, 8, 8), backward=True) == flops


def test_flops_of_the_cnn_leave_out_the_gradient_of_the_images() -> None:
    experiment = WORKLOADS["cifar10"].experiment()
    data = random_data((3, 32, 32), 10, train=20)
    network = make_network(experiment, data, "cpu")
    first = next(module for module in network.modules() if isinstance(module, nn.Conv2d))
    unused = 2 * first.weight.numel() * 28 * 28  # one product as large as the first convolution, 5x5 without padding
    forward, both = (sample_flops(network, (3, 32, 32), backward=backward) for backward in (False, True))
    assert 3 * forward - both == unused
    assert all(leaf.grad is None for leaf in network.parameters())


def test_missing_files_are_replaced_by_random_images(tmp_path: Any) -> None:
    data = data_for(WORKLOADS["resnet18"].experiment(), tmp_path)
    assert (data.train.images.shape, data.classes, data.fingerprint) == ((50_000, 3, 32, 32), 10, "random")


@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.parametrize("norm", ["none", "ln", "gn", "fn", "bn"])
def test_every_workload_is_an_experiment(name: str, norm: str) -> None:
    experiment = WORKLOADS[name].experiment(norm=norm, precision="bf16", clients=40)
    assert (experiment.norm.label().partition(":")[0], experiment.clients) == (norm, 40)


class Linear(nn.Module):
    """A linear classifier that returns features and logits."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 2, bias=False, dtype=torch.float64)
        nn.init.zeros_(self.head.weight)

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features = images.flatten(1)
        return features, self.head(features)


@pytest.mark.parametrize("source", ["memory", "loader"])
def test_plain_loop_is_federated_averaging(source: Any) -> None:
    """Clients of 2 and 1 samples, full batches, one step from zero: w = sum of n_i / n * lr * (one-hot - 1/2) x^T."""
    pixels = np.arange(12, dtype=np.uint8).reshape(3, 1, 2, 2)
    labels = np.array([0, 1, 1])
    data = Data(Arrays(pixels, labels), Arrays(pixels, labels), 2, ("0", "1"), 1, "toy")
    training = Training(steps=1, batch_size=2, lr=0.5, augment=False, dtype=torch.float64, device="cpu")
    network = Linear()
    PlainLoop(network, data, [np.array([0, 1]), np.array([2])], training, source).round()
    x = pixels.reshape(3, 4).astype(float)
    descent = (np.eye(2)[labels] - 0.5)[:, :, None] * x[:, None, :]
    expected = 0.5 * (2 / 3 * descent[:2].mean(0) + 1 / 3 * descent[2])
    assert np.abs(network.head.weight.detach().numpy() - expected).max() < 1e-12


@pytest.mark.parametrize("source", ["memory", "loader"])
def test_plain_loop_takes_all_steps_on_a_small_client(source: Any) -> None:
    data = random_data((3, 8, 8), 2, train=12)
    shapes: list[torch.Size] = []

    class Spy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(()))

        def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            shapes.append(images.shape)
            assert 0 <= images.min() <= images.max() <= 1
            return images, self.weight * images.flatten(1)[:, :2]

    training = Training(steps=3, batch_size=4, lr=0.1, augment=True, dtype=torch.float32, device="cpu")
    PlainLoop(Spy(), data, [np.arange(9), np.arange(9, 12)], training, source).round()
    assert [tuple(shape) for shape in shapes] == [(4, 3, 8, 8)] * 3 + [(3, 3, 8, 8)] * 3


def test_augmentation_shifts_and_flips() -> None:
    torch.manual_seed(0)
    image = torch.zeros(1, 1, 9, 9)
    image[0, 0, 4, 4] = 1
    many = augment(image.expand(500, 1, 9, 9))
    assert many.sum((1, 2, 3)).tolist() == [1] * 500  # at most 4 pixels away, never out of the image
    assert (many.sum(0)[0] > 0).all()


def test_results_are_plain_data() -> None:
    done = dataclasses.asdict(measured(fuse=1, repeats=1, norm="ln"))
    assert (done["workload"], done["norm"], done["data"]) == (
        "tiny",
        "ln",
        data_for(TINY.experiment(), None).fingerprint,
    )


def test_methods_relative_to_fedavg(monkeypatch: pytest.MonkeyPatch) -> None:
    """With rounds of 2 s of FedAvg and 5 s of another method, its factor is 2.5."""
    timed: list[Variant] = []

    def turns(variants: list[Variant], **_: Any) -> dict[str, list[float]]:
        for variant in variants:
            variant.work()  # every variant can be executed
        timed.extend(variants)
        return {variant.name: [2.0 if "fedavg" in variant.name else 5.0] for variant in variants}

    monkeypatch.setattr("flbench.bench.methods.take_turns", turns)
    done = method_costs(TINY, Settings(), ["feddyn", "fedavg"], note=silent)
    pairs = [("loop", "fedavg"), ("loop", "feddyn"), ("stacked", "fedavg"), ("stacked", "feddyn")]
    assert [variant.name for variant in timed] == [", ".join(pair) for pair in pairs]
    assert [(row.executor, row.method) for row in done.rows] == pairs
    assert [row.factor for row in done.rows] == [Spread(f, f, f, 1) for f in (1.0, 2.5, 1.0, 2.5)]
    assert (done.auto, done.rounds) == ("stacked", 1)


def test_methods_run_in_turns_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    methods: list[str] = []
    step = FederatedTrainer.step

    def watched(trainer: FederatedTrainer, **options: Any) -> Any:
        methods.append(trainer.run.method.name)
        return step(trainer, **options)

    monkeypatch.setattr(FederatedTrainer, "step", watched)
    method_costs(TINY, Settings(repeats=1), ["fedprox"], note=silent)
    assert methods == ["fedavg", "fedprox"] * 4  # both executors, after a warm-up


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU here")
def test_on_a_gpu_every_variant_is_compared_with_one_peak() -> None:
    done = measured(device="cuda", threads=4, fuse=2, scaling=True)
    names = [REFERENCE, "stacked", GRAPH, "fused, 2 runs", IN_MEMORY, LOADER]
    assert [row.variant for row in done.rows] == names
    assert len(done.peaks) == 1


def test_probes_relative_to_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """With rounds of 2 s and measurements of 10 s, the costs follow by hand."""
    names = ["a round", "a round between measurements", "a round that keeps client models", *EVERY]
    seconds = {name: [2.0, 2.0] for name in names[:3]} | {name: [10.0, 10.0] for name in EVERY}
    timed: list[Variant] = []

    def turns(variants: list[Variant], **_: Any) -> dict[str, list[float]]:
        for variant in variants:
            variant.work()  # every variant can be executed
        timed.extend(variants)
        return seconds

    monkeypatch.setattr("flbench.bench.probes.take_turns", turns)
    done = probe_costs(TINY, Settings(repeats=2), note=silent)
    assert [variant.name for variant in timed] == names
    assert (done.executor, done.round_s, done.between) == (
        "stacked",
        Spread(2.0, 2.0, 2.0, 2),
        Spread(1.0, 1.0, 1.0, 2),
    )
    looks = {look.probe: look for look in done.looks}
    assert {name: look.every for name, look in looks.items()} == EVERY
    assert (looks["drift"].seconds.median, looks["drift"].rounds.median) == (10.0, 5.0)
    # 50 rounds take 100 s, the four measurements 40 s.
    assert looks["drift"].share == pytest.approx(10 / 140)
    assert done.share == pytest.approx(40 / 140)


def test_a_round_without_a_due_probe_keeps_no_client_models(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[bool] = []
    step = FederatedTrainer.step

    def watched(trainer: FederatedTrainer, *, keep_clients: bool = False, wait: bool = True) -> Any:
        kept.append(keep_clients)
        return step(trainer, keep_clients=keep_clients, wait=wait)

    monkeypatch.setattr(FederatedTrainer, "step", watched)
    probe_costs(TINY, Settings(repeats=1), note=silent)
    # The observed round; then in turns a round, one between measurements and one that keeps models, after a warm-up.
    assert kept == [True, *[False, False, True] * 2]
