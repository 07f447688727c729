"""The check for authors of methods passes what is right, and names what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from torch import Tensor

from flbench import testing
from flbench.errors import UserError
from flbench.methods.base import Batch, Context, Method, ServerContext, Tree, tmap
from flbench.methods.fedprox import FedProx
from flbench.registry import METHODS
from flbench.testing import check_method
from tests.hook_methods import METHODS as HOOK_METHODS
from tests.hook_methods import label
from tests.samples import fast

SAMPLE = ("fedavg", "fedadam", "fedprox", "moon", "scaffold")


@pytest.mark.parametrize("name", fast(METHODS.classes, *SAMPLE))
def test_every_method_passes(name: str) -> None:
    check_method(METHODS.classes[name])


@pytest.mark.parametrize(
    "method", fast(HOOK_METHODS, "Everything", "Statistical", "Learned", "SteppingElementwise", name=label)
)
def test_every_hook_passes(method: Method) -> None:
    check_method(method)


def test_a_method_with_its_term_off_is_fedavg() -> None:
    check_method(FedProx, off={"mu": 0.0})
    with pytest.raises(AssertionError, match=r"with \{'mu': 0\.1\} it is not FedAvg: by .* in x/"):
        check_method(FedProx, off={"mu": 0.1})
    with pytest.raises(AssertionError, match=r"it is FedAvg without \{'mu': 0\.0\} as well"):
        check_method(FedProx(mu=0.0), off={"mu": 0.0})


@dataclass(frozen=True)
class NotElementwise(Method):
    elementwise: ClassVar[bool] = True

    def direction(self, w: Tree, g: Tree, ctx: Context) -> Tree:
        return tmap(lambda leaf: leaf / leaf.norm().clamp_min(1), tmap(lambda leaf: 5 * leaf, g))


@dataclass(frozen=True)
class Branching(Method):
    strength: float = 0.5

    def penalty(self, w: Tree, batch: Batch, ctx: Context) -> Tensor | float:
        return self.strength * w[ctx.head].square().sum() if self.strength > 0.4 else 0.0


@dataclass(frozen=True)
class Overwriting(Method):
    def server_step(self, x: Tree, delta: Tree, message: Tree, state: Tree, ctx: ServerContext) -> tuple[Tree, Tree]:
        return tmap(lambda leaf, d: leaf.add_(d), x, delta), state


@dataclass(frozen=True)
class OverwritingLater(Method):
    """Not in the first call, after which the engine compares what a hook was given."""

    def server_step(self, x: Tree, delta: Tree, message: Tree, state: Tree, ctx: ServerContext) -> tuple[Tree, Tree]:
        return tmap(lambda leaf, d: leaf.add_(d) if ctx.round else leaf + d, x, delta), state


@dataclass(frozen=True)
class Counting(Method):
    """Keeps a state of its own, which no checkpoint holds."""

    rounds: ClassVar[list[int]] = []

    def server_step(self, x: Tree, delta: Tree, message: Tree, state: Tree, ctx: ServerContext) -> tuple[Tree, Tree]:
        self.rounds.append(1)
        return tmap(lambda leaf, d: leaf + d / len(self.rounds), x, delta), state


@dataclass(frozen=True)
class Forgetful(Method):
    def server_step(self, x: Tree, delta: Tree, message: Tree, state: Tree, ctx: ServerContext) -> Any:
        return x


@dataclass(frozen=True)
class Diverging(Method):
    def direction(self, w: Tree, g: Tree, ctx: Context) -> Tree:
        return tmap(lambda leaf: leaf * float("nan"), g)


@dataclass(frozen=True)
class Counted(Method):
    count: int = 2

    def direction(self, w: Tree, g: Tree, ctx: Context) -> Tree:
        return tmap(lambda leaf: leaf * (leaf.abs() >= leaf.abs().flatten().topk(self.count).values[-1]), g)


@dataclass(frozen=True)
class Divided(Method):
    limit: float = 0.3

    def direction(self, w: Tree, g: Tree, ctx: Context) -> Tree:
        scale = (self.limit / ctx.norm(g)).clamp(max=1)
        return tmap(lambda leaf: scale * leaf, g)


#: What a gradient is multiplied by: in float32 with other bits where a number of the run is a tensor, or with the same.
ROUNDED: dict[str, tuple[Callable[[Any, Tensor, Context], Any], str]] = {
    "number / tensor": (lambda self, leaf, ctx: self.mu / (1 + leaf**2), "the field 'mu'"),
    "number * (1 / tensor)": (lambda self, leaf, ctx: self.mu * (1 / (1 + leaf**2)), ""),
    "1 - number": (lambda self, leaf, ctx: (1 - self.mu) * leaf, "the field 'mu'"),
    "tensor - number * tensor": (lambda self, leaf, ctx: leaf - self.mu * leaf, ""),
    "number * number": (lambda self, leaf, ctx: self.mu * self.mu * leaf, "the field 'mu'"),
    "a number that is 0": (lambda self, leaf, ctx: leaf + self.off / (1 + leaf**2), "the field 'off'"),
    "the rate": (lambda self, leaf, ctx: ctx.lr / (1 + leaf**2), "a number of the context, such as ctx.lr,"),
    "the round": (lambda self, leaf, ctx: 0.7 ** (1 + ctx.round) * leaf, "a number of the context, such as ctx.lr,"),
    "the client's size": (lambda self, leaf, ctx: (1 - ctx.relative_size / 3) * leaf, ""),
}


@pytest.mark.parametrize("case", fast(ROUNDED, "number * (1 / tensor)", "1 - number", "the rate"))
def test_numbers_that_torch_rounds_differently_as_tensors_are_named(case: str) -> None:
    scaled, culprit = ROUNDED[case]

    @dataclass(frozen=True)
    class Rounding(Method):
        elementwise: ClassVar[bool] = True
        mu: float = 0.3
        off: float = 0.0

        def direction(self, w: Tree, g: Tree, ctx: Context) -> Tree:
            return tmap(lambda leaf: scaled(self, leaf, ctx), g)

    class Static(Rounding):
        static: ClassVar[frozenset[str]] = frozenset({"mu", "off"})

    if "field" in culprit or not culprit:
        testing._check_bits(Static())
    if culprit:
        with pytest.raises(AssertionError, match=rf"differ in float32: by .* in .*; {culprit} is a Python number"):
            testing._check_bits(Rounding())
    else:
        testing._check_bits(Rounding())


WRONG: list[tuple[Callable[[], Method], type[Exception], str]] = [
    (NotElementwise, AssertionError, "a stack of clients and the loop differ, with momentum and weight decay: by"),
    (Branching, UserError, r"the hook penalty of the method 'Branching' .* it reads the value of a tensor"),
    (Counted, UserError, "the hook direction of the method 'Counted' raised TypeError"),
    (Divided, AssertionError, "the field 'limit' is a Python number alone and a tensor in such a stack"),
    (Overwriting, UserError, r"hook server_step of the method 'Overwriting' changes x\['.*'\] in place; return new"),
    (OverwritingLater, AssertionError, "a hook modifies its inputs, with momentum and weight decay: by"),
    (Counting, AssertionError, "differ"),
    (Forgetful, UserError, "the hook server_step of the method 'Forgetful' returned dict; expected a pair"),
    (Diverging, AssertionError, "by nan in "),
]


@pytest.mark.parametrize("field", [Counted, Divided])
def test_a_static_field_is_the_same_number_in_every_run(field: type[Method]) -> None:
    class Static(field):  # type: ignore[misc]
        static: ClassVar[frozenset[str]] = frozenset({"count", "limit"})

    check_method(Static)


@pytest.mark.parametrize(("method", "error", "problem"), WRONG, ids=[make.__name__ for make, *_ in WRONG])  # type: ignore[attr-defined]
def test_what_is_wrong_is_named(method: type[Method], error: type[Exception], problem: str) -> None:
    with pytest.raises(error, match=problem):
        check_method(method)
