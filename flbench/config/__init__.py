"""The experiment: one frozen, typed, validated configuration, and the run id that names its numbers.

What defines the numbers is in the run id; how long to run (``rounds``) and what to write down (``eval_every``,
``probes``) is not: 200 rounds are a prefix of 10,000, and evaluating does not change training. Where a run executes
(store, device, executor, workers) is no part of an experiment at all.

The data are part of the id by their content: a data set's ``content`` is the fingerprint of its decoded arrays. It is
left out where it is the official content of that name, so ``cifar10`` alone means the official images.
"""

from flbench.config.base import REQUEST_FIELDS, Experiment, canonical_json, digest
from flbench.config.cohorts import cohort_size
from flbench.config.components import FieldProblem, content_of, registry_of
from flbench.config.devices import require_device, require_executor
from flbench.config.evaluations import MAX_ROUNDS, EvaluatedRounds, evaluated_at_start, request_problem
from flbench.config.kinds import (
    KINDS,
    fields_of_all_kinds,
    headline_of,
    plugin_code_of,
    plugins_of,
    problem_of,
)
from flbench.config.parse import (
    ALIASES,
    SYNONYMS,
    Assembler,
    Cell,
    GivenValue,
    InvalidExperiment,
    Layer,
    TypedValue,
    ValidCell,
    Where,
    label,
    normal_path,
    parse_experiment,
    parse_field,
    short_name,
)
from flbench.config.training import FUSABLE, Centralized, Federated, Training

__all__ = [
    "ALIASES",
    "FUSABLE",
    "KINDS",
    "MAX_ROUNDS",
    "REQUEST_FIELDS",
    "SYNONYMS",
    "Assembler",
    "Cell",
    "Centralized",
    "EvaluatedRounds",
    "Experiment",
    "Federated",
    "FieldProblem",
    "GivenValue",
    "InvalidExperiment",
    "Layer",
    "Training",
    "TypedValue",
    "ValidCell",
    "Where",
    "canonical_json",
    "cohort_size",
    "content_of",
    "digest",
    "evaluated_at_start",
    "fields_of_all_kinds",
    "headline_of",
    "label",
    "normal_path",
    "parse_experiment",
    "parse_field",
    "plugin_code_of",
    "plugins_of",
    "problem_of",
    "registry_of",
    "request_problem",
    "require_device",
    "require_executor",
    "short_name",
]
