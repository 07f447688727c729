"""What a plug-in method gets to hear about a hook that fails or returns what the engine cannot use."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from flbench.config import parse_experiment
from flbench.engine import hook_checks
from flbench.engine.federated import FederatedTrainer, step_together
from flbench.errors import UserError
from flbench.methods.base import Batch, Context, Method, ServerContext, Tree, tmap
from flbench.registry import METHODS
from flbench.store import Lease, Plan, Store
from flbench.worker import Options, work
from tests.recording import rerun
from tests.toys import largest_difference, toy_clients, toy_trainer

#: How trainers are made: one run in each of the executors, as one recorded function, and several runs together.
WAYS: dict[str, dict[str, Any]] = {
    "loop": {},
    "loop with threads": {"pool": 2},
    "stacked": {"executor": "stacked"},
    "in chunks": {"executor": "stacked", "chunk": 2},
    "recorded": {"executor": "stacked", "record": rerun},
}
TOGETHER = {name: WAYS[name] for name in ("stacked", "recorded")}

#: The hooks that every stack calls; ``test_own_training.py`` has the one that replaces the steps, ``test_gradients.py``
#: those that take the place of another where they can.
HOOKS = [hook for hook in hook_checks._CHECKS if hook not in ("train", "loss_gradient", "penalty_gradient")]


@dataclass(frozen=True)
class Every(Method):
    """Has every hook, and all of them are right."""

    def init_server(self, x: Tree) -> Tree:
        return {"c": next(iter(x.values())).new_zeros(2)}

    def init_client(self, x: Tree, buffers: Tree) -> Tree:
        return tmap(lambda leaf: 0 * leaf, x)

    def broadcast(self, x: Tree, state: Tree) -> Any:
        return [dict(reversed(x.items())), state]

    def teachers(self, ctx: Context) -> Any:
        return {"server": {**ctx.x}, "previous": tmap(lambda leaf: ctx.counts_Y.sum() * leaf, ctx.client)}

    def logits(self, z_BY: Any, ctx: Context) -> Any:
        return 2 * z_BY

    def loss(self, w: Tree, batch: Batch, ctx: Context) -> Any:
        return super().loss(w, batch, ctx) + batch.teachers["previous"].logits_BY.mean()

    def penalty(self, w: Tree, batch: Any, ctx: Context) -> Any:
        return 0.5

    def perturbed(self, w: Tree, g: Tree, ctx: Context) -> Any:
        return dict(reversed(w.items()))

    def direction(self, w: Tree, g: Tree, ctx: Context) -> Tree:
        return dict(reversed(tmap(lambda leaf: leaf + 0 * ctx.server["c"].sum(), g).items()))

    def step(self, w: Tree, moved: Tree, ctx: Context) -> Tree:
        return dict(reversed(moved.items()))

    def rates(self, name: str, ctx: Context) -> Any:
        return ctx.relative_size if name == "head.weight" else True

    def finish(self, w: Tree, ctx: Context) -> tuple[Tree, Tree]:
        return tmap(lambda old, new: new, ctx.client, w), {"sum": sum(leaf.sum() for leaf in w.values())}

    def upload(self, change: Tree, ctx: Context) -> Any:
        return [dict(reversed(change.items())), ctx.client]

    def upload_bytes(self, x: Tree) -> Any:
        return np.int64(12)

    def delta_weights(self, cohort: Any) -> Any:
        return tuple(cohort.share)

    def message_weights(self, cohort: Any) -> Any:
        return [1] * len(cohort.share)

    def server_step(self, x: Tree, delta: Tree, message: Tree, state: Tree, ctx: ServerContext) -> Any:
        return [tmap(lambda a, d: a + d * float("nan"), x, delta), {"c": state["c"] + message["sum"]}]

    def aggregate(self, changes_n: Tree, weights_n: Any, ctx: Any) -> Any:
        return dict(reversed(super().aggregate(changes_n, weights_n, ctx).items()))

    def evaluated(self, x: Tree, state: Tree) -> Any:
        return dict(reversed(x.items()))

    def local_names(self, model: Any) -> Any:
        return {"head.weight"}

    def extra(self, x: Tree, head: str) -> Any:
        return {"more": 2 * x[head]}

    def twin(self) -> Any:
        return Method()

    def personal(self, x: Tree, client: Tree) -> Any:
        return dict(reversed(x.items()))

    def predict(self, outputs: Any, w: Tree, client: Tree, server: Tree) -> Any:
        return (
            outputs.logits_BY
            + outputs.features_BD @ w["more"].T
            + server["c"].sum()
            + client["trunk.dense1.weight"].sum()
        )


@dataclass(frozen=True)
class Elementwise(Every):
    elementwise: ClassVar[bool] = True

    def direction(self, w: Tree, g: Tree, ctx: Context) -> Tree:
        return g

    def finish(self, w: Tree, ctx: Context) -> tuple[Tree, Tree]:
        return tmap(lambda old, new: new, ctx.client, w), tmap(lambda x, end: end - x, ctx.x, w)

    def server_step(self, x: Tree, delta: Tree, message: Tree, state: Tree, ctx: ServerContext) -> Any:
        return x, state


def with_hook(name: str, hook: Callable[..., Any], base: type[Method] = Every) -> Method:
    """A method with a hook of its own."""
    return dataclass(frozen=True)(type("Faulty", (base,), {name: hook, "name": "faulty"}))()


def train(method: Method, way: dict[str, Any], rounds: int = 1) -> FederatedTrainer:
    trainer = toy_trainer(method, **way)
    for _ in range(rounds):
        trainer.step()
    trainer.evaluate()
    return trainer


def train_together(method: Method, way: dict[str, Any]) -> None:
    trainers = [
        toy_trainer(method, seed=seed, clients=toy_clients(sizes), **way)
        for seed, sizes in enumerate([(20, 14, 26), (9, 30)])
    ]
    step_together(trainers, [False] * 2)
    trainers[0].evaluate()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("method", [Every(), Elementwise()], ids=["mapped", "elementwise"])
def test_what_is_right_passes_even_where_a_number_is_none(method: Method, way: str) -> None:
    trainer = train(method, WAYS[way], rounds=2)
    assert set(trainer.local) > {"head.weight", "more", "twin/head.weight"}
    train_together(method, TOGETHER["recorded"])


@pytest.mark.parametrize("way", WAYS)
def test_each_hook_is_checked_once(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    checks: Counter[str] = Counter()

    def counting(hook: str, check: Callable[..., str | None]) -> Callable[..., str | None]:
        def count(*given: Any) -> str | None:
            checks[hook] += 1
            return check(*given)

        return count

    for hook, check in list(hook_checks._CHECKS.items()):
        monkeypatch.setitem(hook_checks._CHECKS, hook, counting(hook, check))
    train(Every(), {**WAYS[way], "pool": 1}, rounds=3)
    assert checks == dict.fromkeys(HOOKS, 1)
    train(Method(), WAYS[way])
    assert checks.total() == len(HOOKS), "a hook that is FedAvg's own is not checked"


def none(*_: Any) -> None:
    return None


#: A hook, what it returns in place of a valid value (given its arguments), and a part of the message.
WRONG: list[tuple[str, Callable[..., Any], str]] = [
    *((hook, none, "returned None; expected ") for hook in HOOKS if hook != "twin"),
    ("twin", lambda self: 1.0, "returned 1.0; expected a method, or None"),
    ("extra", lambda self, x, head: [head], "returned a list of 1; expected a dict of tensors by name"),
    ("extra", lambda self, x, head: x, "returned 'head.weight', the name of a parameter of the network; expected othe"),
    ("personal", lambda self, x, client: {}, "returned no 'trunk.dense1.weight'; expected the names 'trunk"),
    ("predict", lambda self, outputs, *_: outputs.features_BD, "6); expected a tensor of shape (30, 3), that of the"),
    ("init_server", lambda self, x: list(x.values()), "returned a list of 2; expected a dict of tensors by name"),
    ("init_server", lambda self, x: {"round": 0}, "returned 0 as 'round'; expected a dict of tensors by name"),
    ("init_client", lambda self, x, buffers: {"c": None}, "returned None as 'c'; expected a dict of tensors by name"),
    ("broadcast", lambda self, x, state: x, "expected a pair: (the clients' initial parameters, the tree of"),
    ("broadcast", lambda self, x, state: ({}, {}), "returned no 'trunk.dense1.weight' in the parameters; expected the"),
    ("broadcast", lambda self, x, state: (x, [1]), "returned a list of 1 in what else is sent; expected a dict of ten"),
    ("teachers", lambda self, ctx: [ctx.x], "returned a list of 1; expected a dict of trees by name"),
    ("teachers", lambda self, ctx: {"a": None}, "returned None in 'a'; expected a dict of tensors by name"),
    ("teachers", lambda self, ctx: {"a": {"trunk.dense1.weight": ctx.counts_Y}}, "as 'trunk.dense1.weight' in 'a'; ex"),
    ("loss", lambda self, w, batch, ctx: batch.logits_BY.mean(1), "of shape (5,); expected a tensor of shape ()"),
    ("loss", lambda self, w, batch, ctx: 0.5, "returned 0.5; expected a tensor of shape ()"),
    ("perturbed", lambda self, w, g, ctx: {}, "returned no 'head.weight'; expected the names 'trunk"),
    ("perturbed", lambda self, w, *_: tmap(lambda leaf: leaf[0], w), "as 'trunk.dense1.weight'; expected a tensor of"),
    ("aggregate", lambda self, changes, *_: changes, "'trunk.dense2.weight'; expected a tensor of shape (6, 8)"),
    ("aggregate", lambda self, *_: {}, "returned no 'trunk.dense1.weight'; expected the names"),
    ("evaluated", lambda self, x, state: state, "returned no 'trunk.dense1.weight'; expected the names"),
    ("logits", lambda self, z, ctx: z.argmax(-1), "returned a tensor of shape (5,); expected a tensor of shape (5, 3)"),
    ("logits", lambda self, z, ctx: {}, "returned dict; expected a tensor of shape (5, 3), that of its first argument"),
    ("penalty", lambda self, w, batch, ctx: batch.features_BD.mean(1), "(5,); expected a number or a tensor of shape"),
    ("penalty", lambda self, w, batch, ctx: w, "returned dict; expected a number or a tensor of shape ()"),
    ("direction", lambda self, w, g, ctx: {}, "returned no 'head.weight'; expected the names 'trunk"),
    ("direction", lambda self, w, g, ctx: {**g, "extra": 1 * g["head.weight"]}, "'extra'; expected the"),
    ("direction", lambda self, w, g, ctx: [*g.values()], "returned a list of 4; expected a dict"),
    ("direction", lambda self, w, g, ctx: tmap(lambda leaf: leaf.float(), g), "and torch.float32 as 'trunk.dense1.w"),
    ("step", lambda self, w, moved, ctx: {}, "returned no 'head.weight'; expected the names 'trunk"),
    ("rates", lambda self, name, ctx: -0.1, "-0.1; expected a factor of the rate of 'trunk.dense1.weight', a numb"),
    ("rates", lambda self, name, ctx: ctx.counts_Y, "of shape (3,); expected a factor of the rate of 'trunk.den"),
    ("finish", lambda self, w, ctx: ctx.client, "dict; expected a pair: (the client's next state, the message to the"),
    ("finish", lambda self, w, ctx: (w, {}, {}), "returned a tuple of 3; expected a pair: (the client's next state, "),
    ("finish", lambda self, w, ctx: ({}, {}), "in the client's state; expected the names 'trunk.dense1.weight', 'tru"),
    ("finish", lambda self, w, ctx: (ctx.client, None), "returned None in the message; expected a dict of tensors by"),
    ("finish", lambda self, w, ctx: (ctx.client, {"n": ctx.counts_Y}), "as 'n' in the message; expected floating-poin"),
    ("finish", lambda self, w, ctx: (tmap(lambda leaf: leaf.sum(), ctx.client), {}), "in the client's state; expected"),
    ("upload", lambda self, change, ctx: change, "dict; expected a pair: (the change as it is sent, the client's"),
    ("upload", lambda self, change, ctx: ({}, ctx.client), "in what is sent; expected the names 'trunk"),
    ("upload", lambda self, change, ctx: (change, ctx.counts_Y), "in the client's state; expected a dict of"),
    ("upload_bytes", lambda self, x: 1.5, "returned 1.5; expected a whole number of bytes"),
    ("upload_bytes", lambda self, x: -1, "returned -1; expected a whole number of bytes"),
    ("delta_weights", lambda self, cohort: cohort.share[1:], "returned 2 values; expected 3 numbers, one for each"),
    ("delta_weights", lambda self, *_: 1.0, "returned 1.0; expected 3 numbers, one for each participant"),
    ("message_weights", lambda self, cohort: ["a"] * 3, "returned 'a' among its values; expected 3 numbers"),
    ("message_weights", lambda self, _: torch.ones(3), "a tensor of shape () among its values; expected 3 numbers"),
    ("server_step", lambda self, x, *_: x, "expected a pair: (the server's next parameters, the server's next state)"),
    ("server_step", lambda self, x, d, m, state, ctx: ({}, state), "returned no 'trunk.dense1.weight' in the par"),
    ("server_step", lambda self, x, *_: (x, {}), "'c' in the server's state; expected the names 'c'"),
    ("server_step", lambda self, x, d, m, s, ctx: (tmap(lambda a: a[:1], x), s), "in the parameters; expected a"),
    ("local_names", lambda self, model: "head", "returned 'head'; expected a frozenset of names of parameters and buf"),
    ("local_names", lambda self, model: {"haed.weight"}, "returned 'haed.weight'; expected some of the names 'trunk"),
]  # fmt: skip


@pytest.mark.parametrize("hook", HOOKS)
def test_a_wrong_value_is_one_message(hook: str) -> None:
    """In every way to train for the first value of a hook, and in a loop and a recorded round for the others."""
    for value, problem in [(value, problem) for name, value, problem in WRONG if name == hook]:
        method = with_hook(hook, value)
        ways = WAYS if value is none else ("loop", "recorded")
        together = TOGETHER if value is none else ("stacked",)
        told = set()
        for run, way in [*((train, WAYS[way]) for way in ways), *((train_together, TOGETHER[way]) for way in together)]:
            with pytest.raises(UserError) as raised:
                run(method, way)
            if run is train:
                told.add(str(raised.value))
            place = f"{__file__}:{value.__code__.co_firstlineno}: the hook {hook} of the method 'faulty' "
            assert str(raised.value).startswith(place)
        (message,) = told
        assert problem in message
        assert "\n" not in message


@pytest.mark.parametrize("hook", HOOKS)
def test_an_error_in_a_hook_names_the_line(hook: str) -> None:
    def fails(self: Method, *_: Any) -> Any:
        lookup: dict[str, int] = {}
        return lookup["conv1"]

    expected = f"{__file__}:{fails.__code__.co_firstlineno + 2}: the hook {hook} of the method 'faulty' raised KeyError"
    for run, way in ((train, "loop"), (train, "recorded"), (train_together, "stacked")):
        with pytest.raises(UserError) as raised:
            run(with_hook(hook, fails), WAYS[way])
        assert str(raised.value) == f"{expected}: 'conv1'"
        assert isinstance(raised.value.__cause__, KeyError)


def test_a_hook_that_takes_other_arguments(caplog: pytest.LogCaptureFixture) -> None:
    def direction(self: Method, g: Tree) -> Tree:
        return g

    with pytest.raises(
        UserError, match=r"the hook direction of the method 'faulty' raised TypeError: .* positional arg"
    ):
        train(with_hook("direction", direction), WAYS["stacked"])


def test_a_hook_that_reads_a_number_is_explained(caplog: pytest.LogCaptureFixture) -> None:
    def direction(self: Method, w: Tree, g: Tree, ctx: Context) -> Tree:
        return g if g["head.weight"].sum().item() > 0 else tmap(lambda leaf: -leaf, g)

    method = with_hook("direction", direction)
    train(method, WAYS["loop"])
    for way in TOGETHER.values():
        with pytest.raises(
            UserError, match=r"raised RuntimeError: it reads the value of a tensor .* such as torch\.where$"
        ):
            train(method, way)
    assert "bug" not in caplog.text


def test_a_message_without_the_axis_of_the_clients_is_found() -> None:
    """Where N and the first axis of a leaf agree, such a message would be summed over the wrong axis."""

    def finish(self: Method, w: Tree, ctx: Context) -> tuple[Tree, Tree]:
        return ctx.client, ctx.x

    method = with_hook("finish", finish, Elementwise)
    train(method, WAYS["loop"])
    with pytest.raises(
        UserError, match=r"the message of a stack of 3 clients; expected \(\.\.\., 3\): with elementwise"
    ):
        train(method, WAYS["stacked"])


def test_memory_that_runs_out_in_a_hook_is_no_mistake_of_the_method(caplog: pytest.LogCaptureFixture) -> None:
    def logits(self: Method, z_BY: Any, ctx: Context) -> Any:
        if len(crowded) < 1:
            crowded.append(1)
            raise torch.OutOfMemoryError("CUDA out of memory")
        return z_BY

    crowded: list[int] = []
    train(with_hook("logits", logits), WAYS["stacked"])
    assert [record.args for record in caplog.records] == [(3, 1)]


def add_to(tree: Tree) -> None:
    tree["trunk.dense1.weight"].add_(1)


#: A hook that changes what it is given, and what of it.
IN_PLACE: list[tuple[str, Callable[..., Any], str]] = [
    ("direction", lambda self, w, g, ctx: tmap(lambda leaf: leaf.mul_(2), g), "g['trunk.dense1.weight']"),
    ("direction", lambda self, w, g, ctx: add_to(ctx.x) or g, "ctx.x['trunk.dense1.weight']"),
    ("finish", lambda self, w, ctx: add_to(ctx.client) or (w, {}), "ctx.client['trunk.dense1.weight']"),
    ("penalty", lambda self, w, batch, ctx: 0 * batch.labels_B.add_(0).sum(), "batch.labels_B"),
    ("init_client", lambda self, x, buffers: add_to(x) or x, "x['trunk.dense1.weight']"),
    ("server_step", lambda self, x, delta, *_: add_to(delta) or (x, _[1]), "delta['trunk.dense1.weight']"),
]


@pytest.mark.parametrize("way", ["loop", "stacked"])
@pytest.mark.parametrize(("hook", "body", "what"), IN_PLACE)
def test_a_change_in_place_is_named(hook: str, body: Callable[..., Any], what: str, way: str) -> None:
    expected = (
        f"{__file__}:{body.__code__.co_firstlineno}: the hook {hook} of the method 'faulty' changes {what} in place"
    )
    for base in (Every, Elementwise):
        with pytest.raises(UserError) as raised:
            train(with_hook(hook, body, base), WAYS[way])
        assert str(raised.value) == f"{expected}; return new tensors"


def test_a_number_as_penalty_needs_no_tensor() -> None:
    trainers = [train(with_hook("penalty", lambda *_: 0.25, Method), WAYS[way]) for way in ("loop", "stacked")]
    plain = train(Method(), WAYS["loop"])
    for trainer in trainers:
        assert torch.allclose(trainer.x["head.weight"], plain.x["head.weight"])


def keep(self: Method, w: Tree, g: Tree, ctx: Context) -> Tree:
    return g


def test_a_direction_may_have_another_order() -> None:
    """Two layers of equal shape would change places without an error."""

    def turn(self: Method, w: Tree, g: Tree, ctx: Context) -> Tree:
        return dict(reversed(g.items()))

    for way in WAYS.values():
        there, back = (
            toy_trainer(with_hook("direction", hook, Method), model="square", **way) for hook in (turn, keep)
        )
        there.step(), back.step()
        assert largest_difference(there.x, back.x) == 0


def test_a_checked_method_is_still_itself() -> None:
    method = METHODS.parse({"name": "scaffold", "variant": "text"})
    guarded = hook_checks.checked(method)
    assert isinstance(guarded, type(method))
    assert (guarded.name, guarded.label(), guarded.identity()) == (method.name, method.label(), method.identity())
    assert type(guarded).__name__ == "Scaffold"


def test_the_log_of_a_run_has_the_whole_story(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def server_step(self: Method, *_: Any) -> Any:
        raise ZeroDivisionError("no participants")

    monkeypatch.setitem(METHODS.classes, "faulty", type(with_hook("server_step", server_step, Method)))
    fields: dict[str, Any] = {"model": {"name": "mlp", "widths": [8]}, "clients": 2, "rounds": 2, "partition": "iid"}
    runs = [parse_experiment({**fields, "method": "faulty", "seed": seed}) for seed in range(2)]
    store = Store(tmp_path)
    work(store, Plan.of(runs), Lease.here(), Options(), should_stop=lambda: False)
    for run in runs:
        (attempt,) = store.run(run.run_id).attempts()
        message = (attempt.exit() or {})["message"]
        line = server_step.__code__.co_firstlineno + 1
        expected = (
            f"{__file__}:{line}: the hook server_step of the method 'faulty' raised ZeroDivisionError: no participants"
        )
        assert message == expected
        log = attempt.log_path.read_text()
        assert "Traceback" in log and 'raise ZeroDivisionError("no participants")' in log and expected in log
    assert logging.getLogger("flbench").handlers == []
