"""Runs the tests of a module while its functions have the code of a mutated copy, in this process.

Other modules have imported the functions and classes; these stay the same objects, only their code is replaced.
"""

from __future__ import annotations

import doctest
import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import torch
from _pytest.outcomes import Failed

from flbench.registry import HEADS, adapter
from tests import test_tensor_streams as streams
from tests.conformance import test_golden_optimizers as optimizers
from tests.conformance import test_golden_rates as rates
from tests.conformance import test_golden_statistics as golden_statistics
from tests.conformance import test_kept_momentum as kept_momentum
from tests.engine import test_batch_statistics as statistics
from tests.engine import test_executors as executors
from tests.engine import test_partial_batches as partial_batches
from tests.models import test_heads as heads
from tests.models import test_weight_norms as weights
from tests.mutation.harness import cases_of, name_of
from tests.mutation.mutations import Mutation

Check = Callable[[], Any]

_MODEL = "mlp"
_LEARNED = {"name": "etf", "learned": True}


def checks_of(file: str) -> list[Check]:
    """Return the tests of a module, those that kill most mutations first."""
    if file in ("engine.optimizers", "engine.local"):
        return [
            *(partial(optimizers.test_golden_numbers, case, "loop") for case in optimizers.CASES),
            partial(optimizers.test_adaptive_gradient_clipping, "loop"),
            optimizers.test_units_of_adaptive_gradient_clipping,
            *(partial(optimizers.test_the_norm_is_over_all_parameters, limit) for limit in (0.3, 30.0)),
            partial(optimizers.test_runs_of_one_stack_differ_in_rate_and_schedule, None),
            partial(executors.test_loop_and_stacked_agree_on_unequal_steps, "fedavg"),
            *(partial(kept_momentum.test_golden_numbers, case, "loop") for case in ("momentum", "adam")),
        ]
    if file in ("models.hybrid_batch_norm", "engine.observed", "engine.final_statistics"):
        return [
            *(partial(golden_statistics.test_golden_numbers_of_a_learned_mixture, way) for way in ("loop", "stacked")),
            *(partial(statistics.test_clients_observe_a_batch_or_all_of_their_samples, *case, statistics.MEANS, "loop")
              for case in statistics.OBSERVED),
        ]  # fmt: skip
    if file == "engine.phases":
        cases = [
            partial(rates.test_golden_numbers, case, way) for case in rates.OPTIMIZERS for way in ("loop", "stacked")
        ]
        return [*cases, rates.test_an_infinite_step_leaves_what_rests]
    if file == "tensor_streams":
        return [
            *(partial(streams.test_numbers_by_hand, *case) for case in streams.PRECISIONS),
            partial(streams.test_a_stack_has_the_bits_of_its_clients, (3, 7), torch.float64),
            streams.test_a_round_that_is_a_tensor_has_the_same_keys,
        ]
    if file == "engine.partial_batches":
        return [
            *(partial(partial_batches.test_what_sees_whole_batches_is_trained_by_the_loop, *case)
              for case in partial_batches.WHOLE_BATCHES),
            partial_batches.test_a_product_over_the_batch_is_trained_by_the_loop,
            partial(_doctests, file),
        ]  # fmt: skip
    if file == "data.preflight":
        return [partial(_doctests, file)]
    if file == "models.weight_layers":
        return [
            *(partial(weights.test_the_network_is_the_plain_one_with_standardized_weights, norm, "all")
              for norm in weights.FORMS),
            *(partial(weights.test_equal_weights_have_finite_gradients, norm) for norm in ("ws", "ws-scaled")),
            weights.test_almost_equal_weights_are_not_scaled_up,
        ]  # fmt: skip
    return [
        *(partial(heads.test_formula, **case) for case in cases_of(heads.test_formula) if case["model"] == _MODEL),
        heads.test_a_cosine_head_starts_with_the_rows_of_the_linear_one,
        *(partial(heads.test_rows_of_a_simplex, classes, 0) for classes in (2, 3)),
        partial(heads.test_frozen_rows_are_orthonormal_and_drawn_from_the_seed, 3),
        *(partial(heads.test_logits_are_bounded_and_blind_to_the_length_of_the_features, *case)
          for case in heads.BOUNDED),
        heads.test_a_frozen_head_of_free_features_is_not_bounded,
        heads.test_orthonormal_rows_have_no_preferred_sign,
        *(partial(heads.test_features_almost_without_length, head) for head in ("cosine", "etf")),
        *(partial(heads.test_the_sizes_of_a_projection, *case) for case in heads.PROJECTIONS),
        partial(heads.test_fixed_rows_do_not_move_by_a_bit, "fedavg", _LEARNED, "loop"),
        heads.test_fixed_rows_are_neither_sent_nor_counted,
        heads.test_a_method_that_trains_the_rows_refuses_fixed_ones,
        *(partial(heads.test_as_many_classes_as_features_are_accepted, head) for head in ("frozen", "etf")),
        partial(heads.test_more_classes_than_features_are_refused, "etf", "federated"),
        *(partial(heads.test_a_norm_that_only_scales_features_is_refused_where_the_head_does_not_see_lengths, head)
          for head in ("cosine", "etf", {"name": "frozen", "variant": "spherefed"})),
        partial(executors.agree, "fedavg", {"head": _LEARNED, "steps": [3, 1, 4]}),
    ]  # fmt: skip


def killer_of(mutation: Mutation) -> str | None:
    """Return the name of the first test that fails on the mutated code, or None if all pass."""
    with mutated(mutation):
        for check in checks_of(mutation.file):
            try:
                check()
            except (Exception, Failed):
                return name_of(check)
    return None


@contextmanager
def mutated(mutation: Mutation) -> Iterator[None]:
    """Give the functions, the class attributes and the constants of a module those of its mutated source."""
    module = importlib.import_module(f"flbench.{mutation.file}")
    source = mutation.apply(Path(str(module.__file__)).read_text(encoding="utf-8"))
    copy, registered = ModuleType(module.__name__), dict(HEADS.classes)
    undo: list[Callable[[], None]] = []
    try:
        exec(compile(source, f"mutated {mutation.file}", "exec"), copy.__dict__)
        HEADS.classes.update(registered)
        _replace(module, copy, undo)
        adapter.cache_clear()  # pydantic's validators know the defaults of fields
        yield
    finally:
        HEADS.classes.update(registered)
        for step in reversed(undo):
            step()
        adapter.cache_clear()


def _replace(old: Any, new: Any, undo: list[Callable[[], None]]) -> None:
    """Copy what differs, from a module or a class to another one."""
    for name, value in list(vars(new).items()):
        mine = vars(old).get(name)
        if isinstance(value, FunctionType) and isinstance(mine, FunctionType) and mine is not value:
            _put(mine, "__code__", value.__code__, undo)
            _put(mine, "__defaults__", value.__defaults__, undo)
        elif isinstance(value, property) and isinstance(mine, property):
            _put(mine.fget, "__code__", value.fget.__code__, undo)  # type: ignore[union-attr]
        elif isinstance(value, type) and isinstance(mine, type) and mine is not value:
            _replace(mine, value, undo)
            if "__dataclass_fields__" in vars(value):
                _put(mine, "__dataclass_fields__", value.__dataclass_fields__, undo)  # type: ignore[attr-defined]
        elif isinstance(value, int | float | str | tuple | frozenset) and value != mine and not name.startswith("__"):
            _put(old, name, value, undo)


def _put(target: Any, name: str, value: Any, undo: list[Callable[[], None]]) -> None:
    before = getattr(target, name)
    undo.append(lambda: setattr(target, name, before))
    setattr(target, name, value)


def _doctests(file: str) -> None:
    assert not doctest.testmod(importlib.import_module(f"flbench.{file}")).failed
