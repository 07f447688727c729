"""Time each probe in turns with rounds of training.

    python -m benchmarks.probes [digits cifar10 ...] [FIELD=VALUE ...] [--json]

A row has the milliseconds of a round, or of a probe's measurement; the same in rounds without probes; and for probes
the share of the time of training and all probes.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import cast

from benchmarks.common import Case, Row, measure_each, options
from flbench.bench.timing import Spread, Variant
from flbench.engine.federated import FederatedTrainer
from flbench.engine.model_access import ModelAccess
from flbench.engine.setup import make_network
from flbench.probes import Observation, Probe

#: The probes that are timed, and the rounds between two measurements of each.
EVERY: Mapping[str, int] = {"features": 50, "drift": 50, "sharpness": 50, "overfit": 50}

ROUND = "a round without probes"
BETWEEN = "a round between two measurements"
KEEPING = "a round that keeps the clients' models"
ALL = "all probes"


def measure(case: Case) -> list[Row]:
    """Return a row for each kind of round, each probe of ``EVERY``, and all probes."""
    seconds = case.turns(variants_of(case))
    measured = {name: Spread.of(own) for name, own in seconds.items()}
    a_round = {name: measured[name].median / every for name, every in EVERY.items()}
    total = measured[ROUND].median + sum(a_round.values())
    rows: list[Row] = [
        {
            "what": name,
            "ms": measured[name].times(1000),
            "in rounds": Spread.of_ratios(seconds[name], seconds[ROUND]),
            "every": EVERY.get(name),
            "% of the time": 100 * a_round[name] / total if name in EVERY else None,
        }
        for name in seconds
    ]
    return [*rows, {"what": ALL, "% of the time": 100 * sum(a_round.values()) / total}]


def variants_of(case: Case) -> list[Variant]:
    """Return rounds without, between and with measurements, and each probe's measurement after one round."""
    plain = case.changed(eval_every=10)
    probes = cast(tuple[Probe, ...], case.changed(eval_every=10, probes=dict(EVERY)).experiment.probes)

    def round_between(trainer: FederatedTrainer) -> None:
        """Train a round after which no probe is due, as ``execution`` does."""
        due = [probe for probe in probes if probe.is_due(1, 10**9)]
        trainer.step(keep_clients=any(probe.needs_clients for probe in due), wait=True)

    observed = plain.trainer()
    before = observed.x
    report = observed.step(keep_clients=True, wait=True)
    network = make_network(plain.experiment, case.data, case.device)
    access = ModelAccess(observed, network, plain.experiment.lr)
    after = Observation(observed.round, before, observed.x, report.client_params, report.weights_S, access)
    return [
        Variant(ROUND, partial(plain.trainer().step, wait=True)),
        Variant(BETWEEN, partial(round_between, plain.trainer())),
        Variant(KEEPING, partial(plain.trainer().step, keep_clients=True, wait=True)),
        *(Variant(probe.name, partial(probe.measure, after)) for probe in probes),
    ]


if __name__ == "__main__":
    measure_each("probes", measure, options(__doc__ or "", "digits", "cifar10").parse_intermixed_args())
