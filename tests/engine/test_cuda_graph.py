"""Whole rounds as one graph, without a GPU: only the recording is replaced, by one that calls the function again."""

from __future__ import annotations

import errno
import gc
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pytest
import torch
from torch import Tensor

from flbench.config import parse_experiment
from flbench.data.datasets import Dataset, load
from flbench.engine import executors
from flbench.engine.cuda_graph import SHAPES, CudaRecorder, GraphedFunction
from flbench.engine.cuda_round import RoundFunction
from flbench.engine.executors import StackedExecutor
from flbench.engine.federated import FederatedTrainer, step_together
from flbench.engine.optimizers import Sgd
from flbench.engine.run import ROUNDS_AHEAD, Prefetcher, RoundInputs
from flbench.engine.server_round import RunGroup
from flbench.engine.setup import make_trainer
from flbench.engine.stack_size import client_bytes, clients_that_fit
from flbench.engine.tree_sums import add_weighted, weighted_sum
from flbench.errors import out_of_memory
from flbench.methods.base import Context, Method, ServerContext, Tree
from flbench.registry import METHODS
from flbench.worker import kind_of
from tests.conformance.methods.cases import case_of
from tests.recording import NoWaiting, rerun
from tests.samples import fast
from tests.toys import (
    everything,
    largest_difference,
    record_of,
    toy_clients,
    toy_images,
    toy_network,
    toy_trainer,
    train,
    train_together,
)

NORMS = ["none", "fn", "ln", "gn", "bn"]
TIERS = ("slow", "nightly")


@pytest.mark.parametrize("waits", [lambda x: x.sum().item(), lambda x: x[x > 0], lambda x: torch.tensor([1.0, 2.0])])
def test_the_fake_detects_synchronization(waits: Callable[[Tensor], object]) -> None:
    with NoWaiting(), pytest.raises(RuntimeError, match="would wait"):
        waits(torch.ones(3))


def agree(whole: FederatedTrainer, chunked: FederatedTrainer, tolerance: float = 1e-10) -> None:
    assert largest_difference(everything(whole), everything(chunked)) < tolerance
    found, expected = record_of(whole), record_of(chunked)
    for name in ("loss", "train_loss"):
        assert found.pop(name) == pytest.approx(expected.pop(name), abs=1e-9)
    assert found == expected


def agree_pairwise(together: Sequence[FederatedTrainer], alone: Sequence[FederatedTrainer]) -> None:
    for one, other in zip(together, alone, strict=True):
        agree(one, other)


def both(method: str | Method, **settings: Any) -> tuple[FederatedTrainer, FederatedTrainer]:
    spec = METHODS.parse(method) if isinstance(method, str) else method
    return toy_trainer(spec, executor="stacked", record=rerun, **settings), toy_trainer(spec, **settings)


@pytest.mark.parametrize("tier", ["fast", *(pytest.param(tier, marks=getattr(pytest.mark, tier)) for tier in TIERS)])
@pytest.mark.parametrize("method", METHODS.classes)
def test_a_whole_round_computes_what_the_loop_computes(
    method: str, tier: str, caplog: pytest.LogCaptureFixture
) -> None:
    """With every push batch normalization, and FedAvg with all norms; slow: each method with another; nightly: all."""
    images, another = replace(toy_images(), augment=True), NORMS[list(METHODS.classes).index(method) % 4]
    often = NORMS if method == "fedavg" else ["bn"]
    for norm in {"fast": often, "slow": [another], "nightly": NORMS}[tier]:
        rate = 1e-3 if norm in ("bn", "gn") or method == "fedaws" else 0.1  # they divide by next to nothing
        whole, loop = both(method, norm=norm, images=images, sgd=Sgd(rate, momentum=0.5), participation=0.67)
        train(3, whole, loop)
        agree(whole, loop)
    assert not caplog.records, "nothing fell back"


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fednova", "fedlc", "local-only", "fedbn"])
def test_unequal_steps(method: str, caplog: pytest.LogCaptureFixture) -> None:
    for participation in (1.0, 0.67):
        whole, loop = both(method, norm="bn", steps=[3, 1, 5], sgd=Sgd(1e-3, 0.5, 0.01), participation=participation)
        train(4, whole, loop)
        agree(whole, loop)
    assert not caplog.records


@pytest.mark.parametrize("model", ["toy-cnn", "toy-resnet18"])
def test_networks_of_convolutions(model: str) -> None:
    image = (2, 8, 8)
    settings = {"model": model, "norm": "ln", "image": image, "images": toy_images(image), "batch_size": 3}
    whole, loop = both("scaffold", sgd=Sgd(1e-2), **settings)
    train(2, whole, loop)
    agree(whole, loop)


#: Runs that differ in all that may differ; those of a method also in its hyperparameters (``Case.values``).
MEMBERS: list[dict[str, Any]] = [
    {"seed": 0, "sgd": Sgd(0.01)},
    {"seed": 1, "sgd": Sgd(0.1), "clients": toy_clients((9, 30))},
    {"seed": 1, "sgd": Sgd(0.03), "clients": toy_clients((6,) * 5), "participation": 0.4},
]


def group(method: str, **settings: Any) -> list[FederatedTrainer]:
    options = case_of(method).values[: len(MEMBERS)]
    return [
        toy_trainer(METHODS.parse({"name": method, **own}), executor="stacked", **{**settings, **member})
        for own, member in zip(options, MEMBERS, strict=True)
    ]


@pytest.mark.parametrize("method", fast(METHODS.classes, "fedavg", "scaffold"))
def test_runs_trained_together_have_the_numbers_of_the_runs_alone(
    method: str, caplog: pytest.LogCaptureFixture
) -> None:
    for norm in ("ln", "bn") if method == "scaffold" else ("bn",):
        together, alone = group(method, norm=norm, record=rerun), group(method, norm=norm)
        for _ in range(2):
            reports = step_together(together, [False] * 3)
            assert [report.loss for report in reports] == pytest.approx([trainer.step().loss for trainer in alone])
        agree_pairwise(together, alone)
    assert not caplog.records


def test_chunks_that_cut_through_runs() -> None:
    alone = group("scaffold", norm="bn")
    train(2, *alone)
    for chunk in (1, 2, 4):
        together = group("scaffold", norm="bn", record=rerun, chunk=chunk)
        train_together(2, together)
        agree_pairwise(together, alone)


def test_a_group_that_shrinks_continues() -> None:
    together, alone = group("scaffold", record=rerun), group("scaffold")
    step_together(together, [False] * 3)
    step_together(together[1:], [False] * 2)
    together[2].step()
    for trainer, rounds in zip(alone, (1, 2, 3), strict=True):
        for _ in range(rounds):
            trainer.step()
    agree_pairwise(together, alone)


def test_observers_get_their_own_clients() -> None:
    together, alone = group("fedavg", record=rerun), group("fedavg")
    step_together(together, [False] * 3)
    train(1, *alone)
    reports = step_together(together, [True, False, True])
    assert reports[1].client_params is None
    for number in (0, 2):
        expected, found = alone[number].step(keep_clients=True), reports[number]
        assert found.client_params is not None and expected.client_params is not None
        assert largest_difference(found.client_params, expected.client_params) < 1e-12
        assert torch.equal(found.weights_S, expected.weights_S)  # type: ignore[arg-type]


def test_without_waiting_the_loss_is_a_tensor() -> None:
    whole, loop = both("fedavg")
    report = whole.step(wait=False)
    assert isinstance(report.loss, Tensor)
    assert float(report.loss) == pytest.approx(loop.step().loss)
    assert isinstance(whole.step().loss, float)


def test_the_next_round_does_not_overwrite_a_result() -> None:
    trainer, _ = both("scaffold")
    trainer.step()
    before = trainer.x, {name: leaf.clone() for name, leaf in trainer.x.items()}
    trainer.step()
    assert largest_difference(*before) == 0
    assert largest_difference(before[0], trainer.x) > 0


@pytest.mark.parametrize("bad_round", [1, 3])
def test_divergence_is_detected_late_and_dated_correctly(bad_round: int) -> None:
    together, alone = group("fedavg", record=rerun), group("fedavg")
    for number in range(1, 6):
        if number == bad_round:
            together[1].x = {name: leaf * float("inf") for name, leaf in together[1].x.items()}
        step_together(together, [False] * 3, wait=False)
        train(1, *alone)
    assert [trainer.diverged_in() for trainer in together] == [None, bad_round, None]
    agree(together[0], alone[0])
    agree(together[2], alone[2])


def test_divergence_in_the_loop_is_dated_by_the_last_round() -> None:
    _, loop = both("fedavg")
    loop.step()
    assert loop.diverged_in() is None
    loop.x = {name: leaf * float("nan") for name, leaf in loop.x.items()}
    loop.step()
    assert loop.diverged_in() == 2


def test_a_recorded_run_resumes_from_a_checkpoint() -> None:
    first, loop = both("scaffold", norm="bn", sgd=Sgd(1e-2))
    again, _ = both("scaffold", norm="bn", sgd=Sgd(1e-2))
    again.step()
    train(2, first)
    again.load(first.state())
    train(2, again)
    train(4, loop)
    assert again.diverged_in() is None
    agree(again, loop)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_sum_of_a_gpu_is_that_of_a_cpu(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    weights_n = torch.rand(7, generator=generator, dtype=torch.float64)
    tree = {"matrix": torch.randn(7, 3, 4, generator=generator).to(dtype), "number": torch.arange(7).to(dtype)}
    total = {name: torch.ones_like(leaf[0]) for name, leaf in tree.items()}
    add_weighted(total, tree, weights_n)
    for name, leaf in tree.items():
        found = 1 + weighted_sum(leaf, weights_n)
        torch.testing.assert_close(found, total[name])
        assert found.dtype == dtype


@pytest.mark.parametrize("method", ["scaffold", "fedbn"])
def test_a_round_to_be_recorded_changes_none_of_its_inputs(method: str) -> None:
    """A recording calls it several times, and a round that ran out of memory is repeated from the same inputs."""
    trainer = toy_trainer(METHODS.parse(method), executor="stacked", norm="bn", sgd=Sgd(1e-2), participation=0.67)
    assert isinstance(trainer.executor, StackedExecutor)
    function = RoundFunction(RunGroup((trainer.run,)), trainer.executor)
    drawn = RoundInputs.draw([trainer.run], [0], torch.device("cpu")).tree()
    trees = [drawn, *trainer.run_state().trees()]
    first, second = function(trees), function(trees)
    for one, other in zip(first, second, strict=True):
        assert all(torch.equal(leaf, other[name]) for name, leaf in one.items())


def test_hooks_get_a_plain_number_of_steps_that_all_clients_take() -> None:
    """In every call of a round to be recorded, and in every chunk: a tensor would cost a choice at each step."""
    seen = []

    class Noting(Method):
        def finish(self, w: Tree, ctx: Context) -> tuple[Tree, Tree]:
            seen.append(type(ctx.steps))
            return ctx.client, {}

    toy_trainer(Noting(), executor="stacked", record=rerun, chunk=2).step()
    assert set(seen) == {int} and len(seen) > 4


def test_rounds_are_recorded_once() -> None:
    recorded: list[int] = []

    def counting(call: Callable[[], list[Tree]]) -> tuple[Callable[[], object], list[Tree]]:
        recorded.append(1)
        return rerun(call)

    trainer = toy_trainer(METHODS.parse("scaffold"), executor="stacked", record=counting, participation=0.67)
    train(5, trainer)
    assert len(recorded) == 1
    trainer.evaluate(), trainer.step(), trainer.evaluate()
    assert len(recorded) == 2, "and one for the evaluation"


@dataclass(frozen=True)
class Peeking(Method):
    """A method that reads a number on the host."""

    def server_step(self, x: Tree, delta: Tree, message: Tree, state: Tree, ctx: ServerContext) -> tuple[Tree, Tree]:
        scale = 1.0 if float(next(iter(delta.values())).sum()) > 1e9 else 0.5
        return {name: leaf + scale * delta[name] for name, leaf in x.items()}, state


def test_functions_that_cannot_be_recorded_are_called_directly(caplog: pytest.LogCaptureFixture) -> None:
    whole, loop = both(Peeking())
    train(3, whole, loop)
    agree(whole, loop)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("a round (3 clients) cannot be one CUDA graph and is computed step by step (UserError: ")
    assert "the hook server_step of the method 'Peeking' raised RuntimeError: " in line


def test_more_shapes_than_are_recorded(caplog: pytest.LogCaptureFixture) -> None:
    recorded = []

    def counting(call: Callable[[], list[Tree]]) -> tuple[Callable[[], object], list[Tree]]:
        recorded.append(1)
        return rerun(call)

    def double(trees: Sequence[Tree]) -> list[Tree]:
        return [{"y": 2 * trees[0]["x"]}]

    graphed = GraphedFunction(double, counting, "doubling")
    for _ in range(2):
        for size in range(SHAPES + 3):
            (out,) = graphed(size, [{"x": torch.full((size,), 3.0)}])
            assert torch.equal(out["y"], torch.full((size,), 6.0))
    assert len(recorded) == SHAPES
    assert len(caplog.records) == 1


class ImaginedCuda:
    """Notes in which order a recorder uses ``torch.cuda``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.notes: list[str] = []
        self._streams, self._mode = ["own"], 0
        for name in ("stream", "graph", "set_sync_debug_mode"):
            monkeypatch.setattr(torch.cuda, name, getattr(self, name))
        monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: self._mode)
        self.pools = [f"pool {number}" for number in range(9, 0, -1)]
        monkeypatch.setattr(torch.cuda, "graph_pool_handle", self.pools.pop)
        monkeypatch.setattr(torch.cuda, "Stream", lambda: self._stream("side"))
        monkeypatch.setattr(torch.cuda, "current_stream", lambda: self._stream(self._streams[-1]))
        monkeypatch.setattr(
            torch.cuda, "CUDAGraph", lambda: SimpleNamespace(replay=lambda: self.notes.append("launch"))
        )

    def _stream(self, name: str) -> Any:
        return SimpleNamespace(name=name, wait_stream=lambda other: self.notes.append(f"{name} waits for {other.name}"))

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        self._streams.append(stream.name)
        yield
        self._streams.pop()

    @contextmanager
    def graph(self, graph: Any, *, pool: str, stream: Any, **_: Any) -> Iterator[None]:
        assert stream.name == "side"
        self.notes.append(f"recording in {pool}")
        yield
        self.notes.append("recorded")

    def set_sync_debug_mode(self, mode: Any) -> None:
        self._mode = mode

    def call(self) -> list[Tree]:
        self.notes.append(f"call, mode {self._mode}")
        return [{}]


def test_a_recording_is_tried_out_first(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = ImaginedCuda(monkeypatch)
    launch, outputs = CudaRecorder()(cuda.call)
    launch()
    empty = ["recording in pool 1", "recorded"]  # it keeps the pool
    trial = ["side waits for own", "call, mode 0", "call, mode error", "own waits for side"]
    assert cuda.notes == [*empty, *trial, "recording in pool 1", "call, mode 0", "recorded", "launch"]
    assert outputs == [{}]


def test_a_pool_lives_as_long_as_a_graph_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda, record = ImaginedCuda(monkeypatch), CudaRecorder()

    def pools() -> list[str]:
        return [note.removeprefix("recording in ") for note in cuda.notes if note.startswith("recording in ")]

    one, _ = record(cuda.call)
    two, _ = record(cuda.call)
    assert pools() == ["pool 1"] * 3, "an empty graph, and two that share its pool"
    pool = weakref.ref(one.pool)  # type: ignore[attr-defined]
    del one
    assert pool() is not None
    del two
    assert pool() is None, "nothing holds the memory between two groups"
    cuda.notes.clear()
    _ = record(cuda.call)
    assert pools() == ["pool 2"] * 2


def test_the_graphs_of_ended_runs_are_released() -> None:
    class Launch:
        def __init__(self, launch: Callable[[], object]) -> None:
            self._launch = launch

        def __call__(self) -> None:
            self._launch()

    launches: list[weakref.ref[Launch]] = []

    def recorded(call: Callable[[], list[Tree]]) -> tuple[Callable[[], object], list[Tree]]:
        launch, outputs = rerun(call)
        own = Launch(launch)
        launches.append(weakref.ref(own))
        return own, outputs

    trainers = group("scaffold", record=recorded)
    step_together(trainers, [False] * 3)
    trainers[0].evaluate()
    del trainers[0]
    step_together(trainers, [False] * 2)
    trainers[0].evaluate()
    gc.collect()
    alive = [launch() is not None for launch in launches]
    assert alive == [False, True, True], "of the larger group's round nothing is left; its evaluation is that of all"
    del trainers
    gc.collect()
    assert all(launch() is None for launch in launches)


def test_graphs_are_released_before_a_stack_is_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = toy_trainer(Method(), executor="stacked", record=rerun)
    trainer.step()
    recorded = trainer._recorded
    assert recorded is not None
    graphed, held = recorded._graphed, []

    def crowded(self: GraphedFunction, shape: object, trees: Sequence[Tree]) -> list[Tree]:
        if self is graphed:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return self._function(trees)

    monkeypatch.setattr(GraphedFunction, "__call__", crowded)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: held.append(len(graphed._recordings)))
    trainer.step()
    assert held == [0], "when torch's cache is handed back, the graphs are gone"


def test_a_failed_trial_leaves_all_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = ImaginedCuda(monkeypatch)
    record = CudaRecorder()

    def waiting() -> list[Tree]:
        if cuda.call() and cuda.notes[-1] == "call, mode error":
            raise RuntimeError("called a synchronizing CUDA operation")
        return [{}]

    with pytest.raises(RuntimeError, match="synchronizing"):
        record(waiting)
    assert cuda.notes[-1] == "own waits for side"
    assert torch.cuda.get_sync_debug_mode() == 0
    assert cuda.notes.count("recording in pool 1") == 1, "that of the empty graph"


def test_leaves_are_matched_by_name() -> None:
    graphed = GraphedFunction(lambda trees: [{"y": trees[0]["a"] - trees[0]["b"]}], rerun, "difference")
    one, two = torch.tensor([1.0]), torch.tensor([2.0])
    assert graphed(0, [{"a": one, "b": two}])[0]["y"].item() == -1
    assert graphed(0, [{"b": one, "a": two}])[0]["y"].item() == 1


def test_feedback_stays_in_place_and_other_inputs_are_copied() -> None:
    def count(trees: Sequence[Tree]) -> list[Tree]:
        return [{"double": 2 * trees[0]["by"]}, {"n": trees[1]["n"] + trees[0]["by"], "k": trees[1]["k"] + 1}]

    graphed = GraphedFunction(count, rerun, "counting", feedback=1)
    by, state = {"by": torch.tensor([2.0])}, {"k": torch.tensor(0), "n": torch.tensor([10.0])}
    seen = []
    for _ in range(3):
        result, state = graphed(0, [by, state])
        seen.append((result["double"].item(), state["n"].item(), state["k"].item()))
    assert seen == [(4, 12, 1), (4, 14, 2), (4, 16, 3)]
    assert list(state) == ["k", "n"], "in the order of the input, whatever its kinds of numbers"
    other = {"k": torch.tensor(7), "n": torch.tensor([1.0])}
    assert graphed(0, [{"by": torch.tensor([5.0])}, other])[1]["n"].item() == 6
    assert graphed(0, [by, state])[1]["k"].item() == 4, "an earlier state is untouched by what came after it"


@dataclass(frozen=True)
class Remembering(Method):
    """A method whose states hold the very tensors of another tree: the x, and the client's end, of the round before."""

    elementwise: ClassVar[bool] = True

    def init_server(self, x: Tree) -> Tree:
        return {"round": next(iter(x.values())).new_zeros(()), **{f"before/{name}": leaf for name, leaf in x.items()}}

    def init_client(self, x: Tree, buffers: Tree) -> Tree:
        return x

    def finish(self, w: Tree, ctx: Context) -> tuple[Tree, Tree]:
        return w, ctx.client

    def server_step(self, x: Tree, delta: Tree, message: Tree, state: Tree, ctx: ServerContext) -> tuple[Tree, Tree]:
        pulled = {name: leaf + delta[name] + 0.1 * (message[name] - leaf) for name, leaf in x.items()}
        return pulled, {"round": state["round"] + 1, **{f"before/{name}": leaf for name, leaf in x.items()}}


@pytest.mark.parametrize("participation", [1.0, 0.67])
def test_a_state_may_hold_the_tensors_of_another(participation: float, caplog: pytest.LogCaptureFixture) -> None:
    whole, loop = both(Remembering(), participation=participation)
    stacked = toy_trainer(Remembering(), executor="stacked", participation=participation)
    for _ in range(3):
        before = {f"before/{name}": leaf.clone() for name, leaf in whole.x.items()}
        for trainer in (whole, stacked, loop):
            trainer.step()
        assert largest_difference(before, {name: leaf for name, leaf in whole.server.items() if name != "round"}) == 0
    agree(whole, loop)
    agree(stacked, loop)
    assert not caplog.records


def test_runs_trained_together_may_hold_the_tensors_of_another() -> None:
    together, alone = (
        [toy_trainer(Remembering(), executor="stacked", record=record, **member) for member in MEMBERS]
        for record in (rerun, None)
    )
    for _ in range(3):
        step_together(together, [False] * 3)
        train(1, *alone)
    agree_pairwise(together, alone)


def test_outputs_that_are_views_of_inputs_are_copied_before_those_are_overwritten() -> None:
    def shift(trees: Sequence[Tree]) -> list[Tree]:
        return [{"n": trees[0]["n"] + 1}, {"before": trees[0]["n"]}]

    graphed = GraphedFunction(shift, rerun, "shifting", feedback=2)
    state: list[Tree] = [{"n": torch.tensor([2.0, 12.0])}, {"before": torch.zeros(2)}]
    for number in (0, 1):
        state = graphed(0, state)
        assert state[1]["before"].tolist() == [2 + number, 12 + number]


def test_a_returned_tree_given_in_another_place_is_copied_in() -> None:
    graphed = GraphedFunction(lambda trees: [{"n": 1 * tree["n"]} for tree in trees], rerun, "copying", feedback=2)
    one, two = graphed(0, [{"n": torch.tensor([1.0])}, {"n": torch.tensor([2.0])}])
    assert [tree["n"].item() for tree in graphed(0, [two, one])] == [2, 1]


def test_a_trainer_shares_no_tensor_with_the_state_that_it_was_loaded_from() -> None:
    source, expected = toy_trainer(METHODS.parse("scaffold")), toy_trainer(METHODS.parse("scaffold"))
    train(1, source, expected)
    target = toy_trainer(METHODS.parse("scaffold"))
    target.load(source.state())
    target.step(), source.step(), expected.step()
    assert largest_difference(everything(source), everything(expected)) == 0
    assert largest_difference(everything(target), everything(expected)) == 0


def test_a_state_that_changes_its_shape_is_not_recorded(caplog: pytest.LogCaptureFixture) -> None:
    def grow(trees: Sequence[Tree]) -> list[Tree]:
        return [{"n": torch.cat([trees[0]["n"]] * 2)}]

    graphed = GraphedFunction(grow, rerun, "growing", feedback=1)
    state = {"n": torch.ones(1)}
    for _ in range(3):
        (state,) = graphed(0, [state])
    assert len(state["n"]) == 8
    assert "a round changes the shape or dtype of n" in caplog.text


def test_mixed_precision_keeps_the_weights_in_fp32(caplog: pytest.LogCaptureFixture) -> None:
    experiment = parse_experiment({"precision": "bf16", "E": 2, "norm": "ln", "lr": 0.1})
    data = load(cast(Dataset, experiment.dataset))
    plain, whole = (make_trainer(experiment, data, device="cpu", executor="stacked", pool=1)[0] for _ in range(2))
    start = plain.x
    whole.record = rerun
    train(2, plain, whole)
    assert {leaf.dtype for leaf in whole.x.values()} == {torch.float32}
    assert largest_difference(plain.x, whole.x) < 1e-5 < 1e-3 < largest_difference(plain.x, start)
    assert not caplog.records


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_centralized_training(momentum: float, caplog: pytest.LogCaptureFixture) -> None:
    fields = {"kind": "centralized", "E": 5, "momentum": momentum, "norm": "bn", "precision": "fp64", "lr": 0.01}
    experiment = parse_experiment({**fields, "augment": "flip-crop"})
    data = load(cast(Dataset, experiment.dataset))
    plain, whole, again = (
        make_trainer(experiment, data, device="cpu", executor="stacked", pool=1)[0] for _ in range(3)
    )
    whole.record = again.record = rerun
    for _ in range(3):
        expected, found = plain.step(keep_clients=True), whole.step(keep_clients=True)
        assert found.loss == pytest.approx(expected.loss, abs=1e-10)
        assert largest_difference(found.client_params or {}, expected.client_params or {}) < 1e-10
    again.load(whole.state())
    for trainer in (plain, again):
        trainer.step(wait=False), trainer.step()
    for tree in ("x", "buffers", "velocity"):
        assert largest_difference(getattr(plain, tree), getattr(again, tree)) < 1e-10
    assert again.diverged_in() is None
    again.x = {name: leaf * float("nan") for name, leaf in again.x.items()}
    again.step(wait=False), again.step(wait=False)
    assert again.diverged_in() == 6
    assert not caplog.records


def test_evaluation_of_personal_models() -> None:
    whole, loop = both("local-only", norm="bn", images=toy_images(test=executors.EVALUATION_BATCH + 20))
    train(2, whole, loop)
    agree(whole, loop)


def test_a_feed_gives_every_round_as_it_is_drawn() -> None:
    trainers = group("fedavg", images=replace(toy_images(), augment=True))
    runs = [trainer.run for trainer in trainers]
    feed = Prefetcher(runs, torch.device("cpu"))
    for rounds in [(0, 5, 2), (1, 6, 3), (2, 7, 4), (40, 7, 0), (41, 8, 1)]:
        expected = RoundInputs.draw(runs, rounds, torch.device("cpu")).tree()
        found = feed.next(rounds)
        names = {"cohort_N", "rows_NEB", "weights_5N", "round_N", "lr_N", "crops_NEB3"}
        assert found.keys() == expected.keys() == names
        assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert len(feed._drawn) == ROUNDS_AHEAD
    assert expected["cohort_N"].tolist()[:5] == [0, 1, 2, 0, 1]
    assert expected["weights_5N"][:, :3].T.tolist()[1] == pytest.approx([14 / 60, 14 / 60, 1 / 3, 4, 14 / 20])


WAYS_TO_RUN_OUT = {
    "CUDA out of memory. Tried to allocate 2.00 GiB": "cuda_oom",
    "CUDA error: out of memory": "cuda_oom",
    "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)": "cuda_oom",
    "cuDNN error: CUDNN_STATUS_ALLOC_FAILED": "cuda_oom",
    "FIND was unable to find an engine to execute this computation": "cuda_oom",
    "[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried to allocate": "oom",
}


def test_ways_to_run_out_of_memory() -> None:
    spoiled, translated = RuntimeError("operation failed during capture"), ValueError("too large a picture")
    spoiled.__context__ = translated.__context__ = torch.OutOfMemoryError("CUDA out of memory")
    translated.__suppress_context__ = True  # raised ``from None``
    assert out_of_memory(spoiled) == kind_of(spoiled) == "cuda_oom"
    assert out_of_memory(translated) is None
    for text, kind in WAYS_TO_RUN_OUT.items():
        assert out_of_memory(RuntimeError(text)) == kind_of(RuntimeError(text)) == kind
    assert out_of_memory(OSError(errno.ENOMEM, "Cannot allocate memory")) == "oom"
    for other in (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), OSError(errno.EACCES, "denied")):
        assert out_of_memory(other) is None
        assert kind_of(other) == "error"


def test_a_stack_holds_as_many_clients_as_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    network, image = toy_network("toy-cnn", "bn", image=(2, 8, 8)), (2, 8, 8)
    statistics = {name: leaf.clone() for name, leaf in network.named_buffers()}
    each, fit = client_bytes(network, image, 5, Method()), partial(clients_that_fit, network, image, method=Method())
    FakeMemory(monkeypatch, total=400 * each, allocated=10 * each, cached=50 * each, in_pool=240 * each)
    assert fit(batch_size=5) == 52, "0.35 of the 150 that are free once torch's cache is handed back"
    assert fit(batch_size=5, neighbours=2) == 26, "half of that where two workers share the GPU"
    assert fit(batch_size=50_000) == 1
    assert largest_difference(statistics, dict(network.named_buffers())) == 0


class FakeMemory:
    """The memory of a GPU in bytes: ``in_pool`` belongs to graphs, and only they can use it, in use or not."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *, total: int, allocated: int, cached: int, in_pool: int
    ) -> None:
        self.cached = cached
        own = allocated + in_pool
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (total - own - self.cached, total))
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: own + self.cached)
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: allocated)
        monkeypatch.setattr(torch.cuda, "empty_cache", self.empty)

    def empty(self) -> None:
        self.cached = 0


def test_memory_of_a_client_grows_with_its_batch() -> None:
    image = (2, 8, 8)
    small, large = (client_bytes(toy_network("toy-cnn", image=image), image, batch, Method()) for batch in (10, 20))
    weights = sum(leaf.numel() for leaf in toy_network("toy-cnn", image=image).parameters()) * 8
    assert small > 8 * weights
    # At least what the first convolution and its ReLU keep: the images, and 4 channels of 6x6 pixels before pooling.
    assert (large - small) / 10 > 2 * 8 * (2 * 64 + 4 * 36)


def test_memory_of_windows_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the layer with the largest: the first, whose windows of 3x3 pixels lie at 6x6 places. In float64."""
    network, image = toy_network("toy-cnn", image=(2, 8, 8)), (2, 8, 8)
    found = client_bytes(network, image, 5, Method())
    monkeypatch.setattr("flbench.engine.stack_size.window_numbers", lambda *_, **__: 0)
    assert found - client_bytes(network, image, 5, Method()) == 8 * 5 * (3 * 3 * 2) * (6 * 6)


@pytest.mark.parametrize(("method", "teachers"), [("fedavg", 0), ("fedprox", 0), ("fedntd", 1), ("moon", 2)])
def test_memory_of_teachers_is_counted(method: str, teachers: int) -> None:
    """Their weights, running statistics and outputs, in float64; a pass without gradients keeps no activations."""
    network, image, batch = toy_network("toy-cnn", "bn", image=(2, 8, 8)), (2, 8, 8), 10
    plain, found = (client_bytes(network, image, batch, METHODS.parse(name)) for name in ("fedavg", method))
    tensors = [*network.parameters(), *network.buffers()]
    outputs = batch * (6 + 3)  # the features and the logits
    assert found - plain == teachers * 8 * (sum(leaf.numel() for leaf in tensors) + outputs)


def test_memory_of_second_weights_and_of_added_parameters_is_counted() -> None:
    """A twin's weights and statistics, with its teacher's while it trains; added parameters as the network's own."""

    class Added(Method):
        def extra(self, x: Tree, head: str) -> Tree:
            return {"personal": x[head]}

    class Distilled(Method):
        def twin(self) -> Any:
            return METHODS.parse("fedntd")

    network, image = toy_network("toy-cnn", "bn", image=(2, 8, 8)), (2, 8, 8)
    methods = (Method(), METHODS.parse("ditto"), Distilled(), METHODS.parse("fedntd"), Added())
    plain, twin, taught, teacher, added = (client_bytes(network, image, 10, method) for method in methods)
    weights = 8 * sum(leaf.numel() for leaf in [*network.parameters(), *network.buffers()])
    head = 8 * dict(network.named_parameters())["head.weight"].numel()
    assert (twin - plain, taught - twin, added - plain) == (4 * weights, teacher - plain, 8 * head)
