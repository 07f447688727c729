"""What a method's hooks see and change, and that every executor computes the same with each of them."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flbench.engine.federated import FederatedTrainer, step_together
from flbench.engine.gradients import ByAutograd, ByHand
from flbench.engine.optimizers import Sgd
from flbench.errors import UserError
from flbench.methods.base import Batch, Context, Method, ServerContext, Tree, tmap
from flbench.models.network import head_weight
from tests.hook_methods import METHODS, Ahead, Averaged, Sharp, Taught, label, varied
from tests.recording import rerun
from tests.samples import fast
from tests.toys import largest_difference, toy_clients, toy_images, toy_network, toy_trainer

#: Executors and ways to cut the cohort, each compared with the loop.
WAYS: dict[str, dict[str, Any]] = {
    "stacked": {"executor": "stacked"},
    "in chunks": {"executor": "stacked", "chunk": 2},
    "threads": {"pool": 3},
    "recorded": {"executor": "stacked", "record": rerun},
    "recorded in chunks": {"executor": "stacked", "record": rerun, "chunk": 2},
}
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {"norm": "none", "sgd": Sgd(0.1, 0.5, 0.01)},
    "batch norm, some clients": {"norm": "bn", "sgd": Sgd(1e-2), "participation": 0.67},
    "unequal steps": {"norm": "bn", "sgd": Sgd(1e-2, 0.5, 0.01), "steps": [3, 1, 4]},
}
every_method = pytest.mark.parametrize("method", METHODS, ids=label)


def everything(trainer: FederatedTrainer) -> Tree:
    trees = {**trainer.state()["trees"], "model": {**trainer.model(0)[0], **trainer.model(0)[1]}}
    return {f"{tree}/{name}": leaf for tree, leaves in trees.items() for name, leaf in leaves.items()}


def after(method: Method, rounds: int = 3, **settings: Any) -> FederatedTrainer:
    trainer = toy_trainer(method, **settings)
    for _ in range(rounds):
        trainer.step()
    return trainer


@pytest.mark.parametrize("method", fast(METHODS, "Taught", "Statistical", "Learned", name=label))
def test_every_executor_computes_the_same(method: Method, caplog: pytest.LogCaptureFixture) -> None:
    for setting, given in SETTINGS.items():
        loop = after(method, 2, **given)
        expected, record = everything(loop), loop.evaluate()
        for name, way in WAYS.items():
            found = after(method, 2, **given, **way)
            assert largest_difference(everything(found), expected) < 1e-10, (setting, name)
            assert found.evaluate()["loss"] == pytest.approx(record["loss"], abs=1e-10), (setting, name)
            assert found.bytes_down == loop.bytes_down and found.bytes_up == loop.bytes_up
        assert largest_difference(after(Method(), 2, **given).x, loop.x) > 1e-6 or label(method) == "Averaged", setting
    assert not caplog.records, "nothing fell back"


@pytest.mark.parametrize("recorded", [False, True], ids=["", "recorded"])
@pytest.mark.parametrize("method", fast(METHODS, "Taught", "Statistical", "Learned", name=label))
def test_runs_trained_together_compute_the_same(method: Method, recorded: bool) -> None:
    """Runs at different rounds, with different rates, clients and hyperparameters; stacks cut through runs."""
    members: list[dict[str, Any]] = [
        {"seed": 0, "sgd": Sgd(0.1), "clients": toy_clients((20, 14, 26))},
        {"seed": 1, "sgd": Sgd(0.05), "clients": toy_clients((9, 30)), "participation": 0.5},
        {"seed": 2, "sgd": Sgd(0.02), "clients": toy_clients((15, 15, 15, 15))},
    ]
    own = [varied(method, factor) for factor in (1.0, 0.5, 2.0)]
    way = {"executor": "stacked", "chunk": 5, "record": rerun if recorded else None}
    together = [toy_trainer(one, norm="ln", **way, **member) for one, member in zip(own, members, strict=True)]
    alone = [toy_trainer(one, norm="ln", **member) for one, member in zip(own, members, strict=True)]
    together[1].step(), alone[1].step()
    for _ in range(3):
        step_together(together, [False] * 3)
        for trainer in alone:
            trainer.step()
    for one, other in zip(together, alone, strict=True):
        assert largest_difference(everything(one), everything(other)) < 1e-10


@every_method
def test_a_resumed_run_continues_to_the_bit(method: Method) -> None:
    first = after(method, 2, norm="bn")
    resumed = toy_trainer(method, norm="bn")
    resumed.load(copy.deepcopy(first.state()))
    first.step(), resumed.step()
    assert largest_difference(everything(first), everything(resumed)) == 0
    assert first.evaluate()["loss"] == resumed.evaluate()["loss"]


def test_teachers_see_the_batch_in_evaluation_mode_without_gradient() -> None:
    seen: list[Tensor] = []

    class Seeing(Method):
        def teachers(self, ctx: Context) -> dict[str, Tree]:
            return {"start": {}}

        def penalty(self, w: Tree, batch: Batch, ctx: Context) -> float:
            outputs = batch.teachers["start"]
            assert not outputs.logits_BY.requires_grad and not outputs.features_BD.requires_grad
            seen.append(outputs.logits_BY)
            return 0.0

    settings: dict[str, Any] = {"norm": "bn", "clients": toy_clients((20,)), "batch_size": 20, "steps": 3}
    trainer, plain = toy_trainer(Seeing(), **settings), toy_trainer(Method(), **settings)
    for _ in range(2):
        images = trainer.images
        expected = trainer.executor.predict([trainer.model(0)], images.train_MCHW[:20], images.prepare)[0]
        seen.clear()
        trainer.step(), plain.step()
        assert len(seen) == 3
        for logits in seen:  # a batch is the whole client, in another order
            torch.testing.assert_close(logits.sort(0).values, expected.sort(0).values, rtol=0, atol=1e-12)
    assert largest_difference(everything(trainer), everything(plain)) == 0, "the pass of the teacher changes nothing"


def test_a_teacher_may_name_parameters_and_buffers_of_its_own() -> None:
    seen: list[Tensor] = []

    class Seeing(Method):
        def teachers(self, ctx: Context) -> dict[str, Tree]:
            doubled = {name: 2 * leaf for name, leaf in {**ctx.x, **ctx.buffers}.items()}
            return {"doubled": doubled}

        def loss(self, w: Tree, batch: Batch, ctx: Context) -> Tensor:
            seen.append(batch.teachers["doubled"].logits_BY)
            return super().loss(w, batch, ctx)

    settings: dict[str, Any] = {"norm": "bn", "clients": toy_clients((20,)), "batch_size": 20, "steps": 1}
    trainer = toy_trainer(Seeing(), **settings)
    model = tuple({name: 2 * leaf for name, leaf in tree.items()} for tree in trainer.model(0))
    expected = trainer.executor.predict([model], trainer.images.train_MCHW[:20], trainer.images.prepare)[0]  # type: ignore[list-item]
    trainer.step()
    torch.testing.assert_close(seen[0].sort(0).values, expected.sort(0).values, rtol=0, atol=1e-12)


@pytest.mark.parametrize("executor", ["loop", "stacked"])
def test_an_unknown_name_in_a_teacher_is_one_message(executor: str) -> None:
    class Misspelt(Method):
        def teachers(self, ctx: Context) -> dict[str, Tree]:
            return {"server": {"haed.weight": ctx.x["head.weight"]}}

    with pytest.raises(UserError) as raised:
        toy_trainer(Misspelt(), executor=executor).step()
    place = f"{__file__}:{Misspelt.teachers.__code__.co_firstlineno}: the hook teachers of the method 'Misspelt' "
    expected = "returned 'haed.weight' in 'server'; expected some of the names 'head.weight', 'trunk"
    assert str(raised.value).startswith(place + expected)


@pytest.mark.parametrize("norm", ["none", "bn"])
def test_without_a_perturbation_the_second_gradient_is_the_first(norm: str) -> None:
    settings: dict[str, Any] = {"norm": norm, "sgd": Sgd(0.1, 0.5, 0.01)}
    assert (
        largest_difference(everything(after(Sharp(rho=0.0), **settings)), everything(after(Method(), **settings))) == 0
    )


@pytest.mark.parametrize("executor", ["loop", "stacked"])
def test_the_second_gradient_is_that_of_other_weights_with_weight_decay_of_the_first(executor: str) -> None:
    settings: dict[str, Any] = {"norm": "bn", "clients": toy_clients((20,)), "batch_size": 20, "steps": 1}
    settings |= {"executor": executor}
    lr, decay, rho = 0.1, 0.05, 0.3
    start = toy_trainer(Method(), sgd=Sgd(lr), **settings)
    x = start.x

    def gradient_at(weights: Tree) -> Tree:
        trainer = toy_trainer(Method(), sgd=Sgd(lr), **settings)
        trainer.x = weights
        trainer.step()
        return tmap(lambda before, now: (before - now) / lr, weights, trainer.x)

    g = gradient_at(x)
    norm = sum(float(leaf.square().sum()) for leaf in g.values()) ** 0.5
    there = gradient_at(tmap(lambda x, g: x + rho * g / norm, x, g))
    found = after(Sharp(rho=rho), 1, sgd=Sgd(lr, 0.0, decay), **settings)
    expected = tmap(lambda x, g: x - lr * (g + decay * x), x, there)
    assert largest_difference(found.x, expected) < 1e-12
    assert largest_difference(found.buffers, after(Method(), 1, sgd=Sgd(lr), **settings).buffers) == 0, "moved once"


@pytest.mark.parametrize("executor", ["loop", "stacked"])
def test_a_perturbation_without_the_gradient_takes_one_pass(executor: str) -> None:
    """Gradient, batch statistics and loss are those of FedAvg's first step from the perturbed weights."""

    class Ahead(Method):
        perturbs_by_gradient = False

        def perturbed(self, w: Tree, g: Tree, ctx: Context) -> Tree:
            assert not g
            return dict(reversed(tmap(lambda leaf: leaf + 0.3, w).items()))

    settings: dict[str, Any] = {"norm": "bn", "clients": toy_clients((20,)), "batch_size": 20, "steps": 1}
    settings |= {"executor": executor}
    found = toy_trainer(Ahead(), sgd=Sgd(0.1, 0.0, 0.05), **settings)
    there = toy_trainer(Method(), sgd=Sgd(0.1), **settings)
    x = found.x
    there.x = tmap(lambda leaf: leaf + 0.3, x)
    assert found.step().loss == pytest.approx(there.step().loss, abs=1e-12)
    expected = tmap(lambda x, moved: x + (moved - x - 0.3) - 0.1 * 0.05 * x, x, there.x)
    assert largest_difference(found.x, expected) < 1e-12
    assert largest_difference(found.buffers, there.buffers) == 0


def test_an_aggregation_sees_the_changes_of_all_participants() -> None:
    seen: list[tuple[Tree, Tensor, ServerContext]] = []

    @dataclass(frozen=True)
    class Seeing(Method):
        def finish(self, w: Tree, ctx: Context) -> tuple[Tree, Tree]:
            return {}, {"size": 60 / 3 * w["head.weight"].new_ones(()) * ctx.relative_size}

        def aggregate(self, changes_n: Tree, weights_n: Tensor, ctx: ServerContext) -> Tree:
            seen.append((changes_n, weights_n, ctx))
            return super().aggregate(changes_n, weights_n, ctx)

    found, plain = toy_trainer(Seeing(), executor="stacked", chunk=2), toy_trainer(Method())
    x = found.x
    loss = found.step().loss
    plain.step()
    assert largest_difference(found.x, plain.x) < 1e-15
    ((changes, weights, context),) = seen
    assert weights.tolist() == pytest.approx([20 / 60, 14 / 60, 26 / 60])
    assert context.messages_n["size"].tolist() == pytest.approx([20, 14, 26])
    assert found.run.counts.tolist() == context.counts_nY.tolist() == found.run.counts_NY.tolist()
    assert largest_difference(context.x, x) == 0
    assert (weights @ context.losses_n).item() == pytest.approx(loss) and len(set(context.losses_n.tolist())) == 3
    sent = toy_trainer(Method()).step(keep_clients=True).client_params
    assert sent is not None
    assert largest_difference(changes, tmap(lambda leaf, x: leaf - x, sent, x)) < 1e-15


def test_clients_start_where_the_server_says() -> None:
    """The change is that of FedAvg from there, and what else is sent counts as bytes."""

    @dataclass(frozen=True)
    class Starting(Ahead):
        def direction(self, w: Tree, g: Tree, ctx: Context) -> Tree:
            assert ctx.server.keys() == w.keys()
            return g

        def server_step(self, x: Tree, delta: Tree, message: Tree, state: Tree, ctx: ServerContext) -> Any:
            return tmap(lambda leaf, d: leaf + d, x, delta), state

    ahead, plain = toy_trainer(Starting()), toy_trainer(Method())
    x = ahead.x
    start = tmap(lambda leaf, v: leaf + 0.5 * v, x, ahead.server)
    plain.x = start
    report, expected = ahead.step(keep_clients=True), plain.step(keep_clients=True)
    assert largest_difference(tmap(lambda a, b: a - b, ahead.x, x), tmap(lambda a, b: a - b, plain.x, start)) < 1e-15
    assert report.client_params is not None and expected.client_params is not None
    changes = tmap(lambda leaf, x: leaf - x, report.client_params, x)
    assert largest_difference(changes, tmap(lambda leaf, x: leaf - x, expected.client_params, start)) < 1e-15
    assert ahead.bytes_down == 2 * plain.bytes_down and ahead.bytes_up == plain.bytes_up


def test_clients_do_not_start_from_what_is_evaluated() -> None:
    found, plain = toy_trainer(Averaged()), toy_trainer(Method())
    before = plain.x
    for _ in range(3):
        before = plain.x
        found.step(), plain.step()
    assert largest_difference(found.x, plain.x) == 0
    mean = tmap(lambda a, b: (a + b) / 2, plain.x, before)
    assert largest_difference(found.model(0)[0], mean) == 0
    plain.x = mean
    assert found.evaluate()["loss"] == plain.evaluate()["loss"]


@pytest.mark.parametrize("way", ["loop", *WAYS])
def test_the_context_names_round_head_size_and_buffers(way: str) -> None:
    class Sending(Method):
        def finish(self, w: Tree, ctx: Context) -> tuple[Tree, Tree]:
            zero = w[ctx.head].new_zeros(())
            message = {"round": zero + ctx.round, "size": zero + ctx.relative_size}
            return {}, message | {f"after/{name}": leaf for name, leaf in ctx.buffers.items()}

        def message_weights(self, cohort: Any) -> Any:
            return cohort.share

        def server_step(self, x: Tree, delta: Tree, message: Tree, state: Tree, ctx: ServerContext) -> Any:
            return super().server_step(x, delta, message, state, ctx)[0], {
                **message,
                "at": 0 * message["round"] + ctx.round,
            }

        def init_server(self, x: Tree) -> Tree:
            buffers = {name: x["head.weight"].new_zeros(size) for name, size in SIZES.items()}
            return {name: x["head.weight"].new_zeros(()) for name in ("round", "size", "at")} | buffers

    trainer = toy_trainer(Sending(), norm="bn", sgd=Sgd(1e-2), **WAYS.get(way, {}))
    for number in range(3):
        trainer.step()
        assert float(trainer.server["round"]) == pytest.approx(number, abs=1e-12)
        assert float(trainer.server["at"]) == number
        assert float(trainer.server["size"]) == pytest.approx((20**2 + 14**2 + 26**2) / 60 / 20)
        after_round = {name: trainer.server[f"after/{name}"] for name in trainer.buffers}
        assert largest_difference(after_round, trainer.buffers) < 1e-12, "those after the last step"


SIZES = {f"after/{name}": leaf.shape for name, leaf in toy_trainer(Method(), norm="bn").buffers.items()}


def test_numbers_of_single_clients_broadcast_in_elementwise_hooks() -> None:
    @dataclass(frozen=True)
    class Scaled(Method):
        elementwise = True

        def init_client(self, x: Tree, buffers: Tree) -> Tree:
            return tmap(lambda leaf: 0.1 * leaf, x)

        def direction(self, w: Tree, g: Tree, ctx: Context) -> Tree:
            pulled = tmap(lambda g, w, x, c: g + 0.1 / ctx.relative_size * (w - x + c), g, w, ctx.x, ctx.client)
            return tmap(lambda leaf: leaf / ctx.steps, pulled)

        def finish(self, w: Tree, ctx: Context) -> tuple[Tree, Tree]:
            return tmap(lambda c, w, x: c + (w - x) / ctx.relative_size, ctx.client, w, ctx.x), {}

    for settings in ({}, {"steps": [3, 1, 4]}, {"model": "square", "clients": toy_clients((9,) * 6 + (6,))}):
        loop = after(Scaled(), **settings)
        for chunk in (None, 2):
            stacked = after(Scaled(), executor="stacked", chunk=chunk, **settings)
            assert largest_difference(everything(loop), everything(stacked)) < 1e-12


def test_norms_are_of_single_clients_in_elementwise_hooks() -> None:
    """Of trees of a client, one with a leaf without axes, and of the server."""

    @dataclass(frozen=True)
    class Scaled(Method):
        def init_client(self, x: Tree, buffers: Tree) -> Tree:
            return {**tmap(lambda leaf: 0.1 * leaf, x), "own": x["head.weight"].new_ones(())}

        def direction(self, w: Tree, g: Tree, ctx: Context) -> Tree:
            scale = ctx.norm(w) / ctx.norm(ctx.x) / (ctx.norm(g) + ctx.norm(ctx.client))
            return tmap(lambda leaf: leaf * scale, g)

        def finish(self, w: Tree, ctx: Context) -> tuple[Tree, Tree]:
            return {**tmap(lambda leaf: leaf / ctx.norm(w), w), "own": ctx.client["own"] * ctx.norm(w)}, {}

    class Elementwise(Scaled):
        elementwise = True

    loop = after(Scaled())
    for method in (Scaled(), Elementwise()):
        for chunk in (None, 2):
            stacked = after(method, executor="stacked", chunk=chunk)
            assert largest_difference(everything(loop), everything(stacked)) < 1e-12


def test_a_direction_may_be_the_weights_themselves() -> None:
    class Shrinking(Method):
        def direction(self, w: Tree, g: Tree, ctx: Context) -> Tree:
            return w

    class Copying(Method):
        def direction(self, w: Tree, g: Tree, ctx: Context) -> Tree:
            return tmap(lambda leaf: leaf.clone(), w)

    for executor in ("loop", "stacked"):
        same, copied = (after(method, executor=executor, sgd=Sgd(0.1, 0.9)) for method in (Shrinking(), Copying()))
        assert largest_difference(same.x, copied.x) == 0


@pytest.mark.parametrize(("way", "executor"), [(ByHand, "stacked"), (ByAutograd, "loop")])
def test_a_network_is_evaluated_for_teachers_only(way: Any, executor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[int] = []
    taught = way.taught

    def note(self: Any, images: Tensor) -> Any:
        outputs = taught(self, images)
        passes.append(len(outputs))
        return outputs

    monkeypatch.setattr(way, "taught", note)
    for method in METHODS:
        if not isinstance(method, Taught):
            after(method, 1, executor=executor)
    assert not passes
    after(Taught(), 1, executor=executor, clients=toy_clients((60,), test=30), steps=4)
    assert passes == [3] * 4, "one pass of each teacher a step"


def test_teachers_of_convolutions() -> None:
    image = (2, 8, 8)
    settings = {"model": "toy-resnet18", "norm": "bn", "image": image, "images": toy_images(image), "batch_size": 4}
    loop, stacked = (after(Taught(), 2, sgd=Sgd(1e-4), executor=way, **settings) for way in ("loop", "stacked"))
    assert largest_difference(everything(loop), everything(stacked)) < 1e-10


def test_the_head_of_a_network_is_found_by_its_name() -> None:
    assert head_weight(toy_network()) == "head.weight"
    assert head_weight(nn.Linear(2, 2)) == ""
