"""The experiment: one frozen, typed, validated configuration, and the run id that names its numbers.

What defines the numbers is in the run id; how long to run (``rounds``) and what to write down (``eval_every``,
``probes``) is not: 200 rounds are a prefix of 10,000, and looking does not change what is seen. Where a run executes
(store, device, executor, workers) is no part of an experiment at all.

The data are part of the id by their content: a data set's ``content`` is the fingerprint of its decoded arrays. It is
left out where it is the official content of that name, so ``cifar10`` alone means the official images.
"""

from flbench.config.base import (
    MAX_EVALUATIONS,
    MAX_ROUNDS,
    REQUEST_FIELDS,
    BaseExperiment,
    Check,
    EvaluatedRounds,
    FieldProblem,
    InvalidExperiment,
    Spelling,
    asks_why,
    canonical_json,
    content_of,
    digest,
    digest_text,
    parse_components,
    plugins_of,
    registry_of,
    request_problem,
)
from flbench.config.kinds import (
    ALIASES,
    KINDS,
    Experiment,
    fields_of_all_kinds,
    headline_of,
    parse_experiment,
    parse_field,
    require_device,
)
from flbench.config.studies import Deep, Rank, Sharpness
from flbench.config.training import FUSABLE, Centralized, Federated, Training, cohort_size, implied_by

__all__ = [
    "ALIASES",
    "FUSABLE",
    "KINDS",
    "MAX_EVALUATIONS",
    "MAX_ROUNDS",
    "REQUEST_FIELDS",
    "BaseExperiment",
    "Centralized",
    "Check",
    "Deep",
    "EvaluatedRounds",
    "Experiment",
    "Federated",
    "FieldProblem",
    "InvalidExperiment",
    "Rank",
    "Sharpness",
    "Spelling",
    "Training",
    "asks_why",
    "canonical_json",
    "cohort_size",
    "content_of",
    "digest",
    "digest_text",
    "fields_of_all_kinds",
    "headline_of",
    "implied_by",
    "parse_components",
    "parse_experiment",
    "parse_field",
    "plugins_of",
    "registry_of",
    "request_problem",
    "require_device",
]
