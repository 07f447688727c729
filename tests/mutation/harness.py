"""Runs the tests of a method against a mutated copy of its module, in this process."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType

from flbench import methods
from flbench.registry import METHODS
from tests.conformance import test_conformance as conformance
from tests.conformance import test_golden as golden
from tests.conformance import test_golden_drift as drift
from tests.conformance import test_golden_losses as losses
from tests.conformance import test_golden_server as server
from tests.conformance import test_golden_teachers as teachers
from tests.conformance import test_invariants as invariants
from tests.conformance.problem import EQUAL, SHARE
from tests.mutation.mutations import Mutation

Check = Callable[[], None]

FOLDER = Path(methods.__file__).parent
_SCAFFOLD_VARIANTS = {"original": (EQUAL, EQUAL), "text": (SHARE, EQUAL), "code": (SHARE, SHARE)}


def checks_of(file: str, executor: str) -> list[Check]:
    """Return the golden and conformance tests of a module, those that kill most mutations first."""
    scaffold = [
        partial(golden.test_scaffold, executor, variant, *weights, steps)
        for variant, weights in _SCAFFOLD_VARIANTS.items()
        for steps in ((3, 3, 3), golden.UNEQUAL)
    ]
    checks: dict[str, list[Check]] = {
        "base": [
            partial(golden.test_fedavg, executor),
            partial(golden.test_fedavg_server_learning_rate, executor),
            *scaffold,
        ],
        "fedprox": [partial(losses.test_fedprox, executor, mu) for mu in (None, 0.3)],
        "fedlc": [
            *(partial(losses.test_fedlc, executor, tau) for tau in (None, 0.4)),
            conformance.test_fedlc_without_margin_is_a_softmax_over_the_clients_own_classes,
        ],
        "balanced_softmax": [partial(losses.test_balanced_softmax, executor)],
        "fedrs": [partial(losses.test_fedrs, executor, alpha) for alpha in (None, 0.2)],
        "feddecorr": [
            *(
                partial(losses.test_feddecorr, executor, settings, variant, coefficient)
                for settings, variant, coefficient in losses.FEDDECORR_CASES
            ),
            *(
                partial(conformance.test_without_its_own_term_a_method_is_fedavg, off, "none")
                for off in conformance.TERM_OFF
                if off["name"] == "feddecorr"
            ),
        ],
        "fednova": [partial(golden.test_fednova, executor, momentum) for momentum in (0.0, 0.8)],
        "fedopt": [
            *(partial(server.test_fedavgm, executor, settings) for settings in ({}, {"beta": 0.4, "server_lr": 0.7})),
            *(
                partial(server.test_adaptive_server, executor, method, settings)
                for method in server.SECOND_MOMENTS
                for settings in server.SETTINGS
            ),
        ],
        "scaffold": [
            *scaffold,
            partial(golden.test_scaffold_is_the_original_by_default, executor),
            partial(golden.test_scaffold_with_two_of_three_clients, executor),
            *(
                partial(golden.test_scaffold_corrects_after_momentum_as_niid_bench_does, executor, variant, weights)
                for variant, weights in (("niid-bench", EQUAL), ("flower", SHARE))
            ),
        ],
        "fedbn": [partial(golden.test_fedbn, executor), conformance.test_fedbn_finds_batch_norm_by_type_not_by_name],
        "local_only": [
            partial(golden.test_local_only, executor),
            conformance.test_local_only_does_not_depend_on_other_clients,
        ],
        "feddyn": [partial(drift.test_feddyn, executor, each, 2 / 3) for each in drift.DYN_SETTINGS],
        "fedcm": [
            partial(drift.test_fedcm, executor, settings, steps)
            for settings in ({}, {"alpha": 0.6, "server_lr": 0.7})
            for steps in ((3, 3, 3), drift.UNEQUAL)
        ],
        "fedsam": [
            *(partial(drift.test_fedsam, executor, rho) for rho in (None, 0.3)),
            partial(drift.test_mofedsam, executor, {}),
            partial(invariants.test_fedsam_perturbs_by_rho_over_all_leaves, 1e-9),
            invariants.test_fedsam_does_not_move_without_a_gradient,
        ],
        "fedexp": [
            *(partial(drift.test_fedexp, executor, settings) for settings in ({}, {"eps": 0.02})),
            partial(invariants.test_fedexps_step_is_never_below_1, 1e-3),
            invariants.test_fedexp_is_evaluated_at_the_mean_of_two_iterates,
        ],
        "fedacg": [
            partial(drift.test_fedacg, executor, settings)
            for settings in ({}, {"lam": 0.5, "beta": 0.3, "server_lr": 0.7})
        ],
        "moon": [
            *(partial(teachers.test_moon, executor, settings) for settings in teachers.MOON_SETTINGS),
            partial(teachers.test_moon_compares_with_teachers_in_evaluation_mode, executor),
        ],
        "fedntd": [
            *(partial(teachers.test_fedntd, executor, settings) for settings in teachers.NTD_SETTINGS),
            partial(teachers.test_fedntd_distils_from_the_server_in_evaluation_mode, executor),
        ],
        "fedaws": [
            *(partial(drift.test_fedaws, executor, settings) for settings in drift.AWS_SETTINGS),
            invariants.test_fedaws_has_no_bias,
            invariants.test_a_class_without_a_holder_keeps_its_row,
        ],
    }
    return checks[file]


def killer_of(mutation: Mutation, executor: str = "loop") -> str | None:
    """Return the name of the first test that fails on the mutated code, or None if all pass."""
    with mutated(mutation):
        for check in checks_of(mutation.file, executor):
            try:
                check()
            except AssertionError:
                return _name(check)
    return None


@contextmanager
def mutated(mutation: Mutation) -> Iterator[None]:
    """Register the classes of a mutated copy of a module; for ``base``, reload all modules that import it, too."""
    registered, modules = dict(METHODS.classes), dict(sys.modules)
    try:
        _load(mutation.file, mutation.apply(_source(mutation.file)))
        if mutation.file == "base":
            for path in sorted(FOLDER.glob("*.py")):
                if path.stem not in ("base", "__init__"):
                    _load(path.stem, _source(path.stem))
        yield
    finally:
        METHODS.classes.clear()
        METHODS.classes.update(registered)
        sys.modules.update({name: modules[name] for name in sys.modules if name.startswith("flbench.methods.")})


def _load(file: str, source: str) -> None:
    name = f"flbench.methods.{file}"
    spec = importlib.util.spec_from_loader(name, loader=None)
    assert spec is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look up annotations here, and other modules import it from here
    exec(compile(source, f"mutated {file}.py", "exec"), module.__dict__)


def _source(file: str) -> str:
    return (FOLDER / f"{file}.py").read_text(encoding="utf-8")


def _name(check: Check) -> str:
    function = check.func if isinstance(check, partial) else check
    return str(function.__name__)
