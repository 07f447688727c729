from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import islice, product
from typing import Any

import pytest

from flbench.config import (
    KINDS,
    SYNONYMS,
    EvaluatedRounds,
    Federated,
    FieldProblem,
    InvalidExperiment,
    canonical_json,
    digest,
    fields_of_all_kinds,
    headline_of,
    parse_experiment,
    parse_field,
)
from flbench.metric_specs import METRICS
from flbench.registry import METHODS

#: A change here invalidates all existing results. It must be intended, and come with a new component version.
GOLDEN_IDS: dict[str, dict[str, Any]] = {
    "26dcd10561c5566e": {},
    "8b224895b06150af": {"norm": "ln", "seed": 1},
    "2faba8f247721389": {"norm": {"name": "gn", "groups": 4}, "lr": 0.1, "E": 1, "method": "scaffold"},
    "2f89f909a1295ae3": {"dataset": "cifar10", "model": "cnn", "partition": "dirichlet:0.1", "clients": 20},
    "33083b927ed20372": {
        "method": {"name": "fedyogi", "beta1": 0.5},
        "participation": 0.5,
        "momentum": 0.9,
        "weight_decay": 1e-4,
    },
    "b596553a6f7e6e34": {
        "kind": "centralized",
        "norm": "bn",
        "model": {"name": "mlp", "widths": [64, 32]},
        "precision": "fp64",
    },
    "f50b559baddddce5": {"kind": "sharpness"},
    "2291f4036f7ae0cb": {
        **{"kind": "sharpness", "activation": "tanh", "sigma_w2": 3, "sigma_b2": 0.64, "width": 200},
        **{"normalized": "bn-last", "seed": 1},
    },
    "66c4435018cc119c": {
        **{"kind": "sharpness", "lr": 0.001, "rounds": 100, "samples": 1000, "precision": "fp32", "spectrum": True},
    },
    "9b9cdab1eec48f42": {"kind": "rank"},
    "b8a6d41b96e33d58": {
        **{"kind": "rank", "activation": "relu", "gamma": 0.1, "normalized": "bn-rms", "rounds": 100},
    },
    "4567d22919c376c6": {"kind": "deep"},
    "e49963e68647906f": {
        **{"kind": "deep", "dataset": "fashion_mnist", "depth": 8, "init": "he", "lr": 0.1, "rounds": 5},
        **{"pretrain_steps": 25, "rescale": True},
    },
}


@pytest.mark.parametrize(("run_id", "raw"), GOLDEN_IDS.items())
def test_run_ids_are_frozen(run_id: str, raw: dict[str, Any]) -> None:
    assert parse_experiment(raw).run_id == run_id


def test_the_identity_in_full() -> None:
    assert canonical_json(parse_experiment({"lr": 0.1, "seed": 2}).identity()) == (
        '{"dataset":{"name":"digits","version":1},"kind":"federated","lr":0.1,"method":{"name":"fedavg","version":1},'
        '"model":{"name":"mlp","version":1},"norm":{"name":"none","version":1},'
        '"partition":{"n":1,"name":"classes","version":1},"seed":2,"version":1}'
    )


@pytest.mark.parametrize(
    ("raw", "same"),
    [
        ({"lr": 1}, {"lr": 1.0}),
        ({"clients": 20.0}, {"clients": 20}),
        ({"weight_decay": -0.0}, {}),
        ({"E": 10}, {"local_steps": 10}),
        ({"norm": "gn"}, {"norm": {"name": "gn", "groups": 2}}),
        ({"partition": "dirichlet:1"}, {"partition": {"name": "dirichlet", "beta": 1.0}}),
        ({"dataset": "cifar10", "augment": "flip-crop"}, {"dataset": "cifar10"}),
        ({"rounds": 10, "eval_every": 1}, {}),
        ({"kind": "rank", "rounds": 1000, "eval_every": 100}, {"kind": "rank"}),
        ({"kind": "sharpness", "sigma_w2": 2, "samples": None, "lr": None}, {"kind": "sharpness"}),
        ({"kind": "sharpness", "samples": 100, "width": 100}, {"kind": "sharpness"}),
        ({"kind": "rank", "samples": 8, "width": 8}, {"kind": "rank", "width": 8}),
        ({"kind": "deep", "pretrain_lr": 0.5, "pretrain_optimizer": "sgd"}, {"kind": "deep"}),
        ({"kind": "deep", "pretrain_variant": "code"}, {"kind": "deep"}),
        (
            {"kind": "deep", "pretrain_steps": 2, "pretrain_variant": "code"},
            {
                "kind": "deep",
                "pretrain_steps": 2,
                "pretrain_variant": "code",
                "pretrain_optimizer": "sgd",
                "pretrain_lr": 0.1,
            },
        ),
        ({"norm": {"name": "ln", "order": "before"}}, {"norm": "ln-before"}),
        ({"norm": {"name": "gn", "groups": 1}}, {"norm": "ln-channel"}),
        (
            {"norm": {"name": "gn", "groups": 1, "order": "before"}},
            {"norm": {"name": "ln-channel", "order": "before"}},
        ),
        ({"norm": {"name": "gn-static", "groups": 1}}, {"norm": "ln-static"}),
        ({"participation": 0.24}, {"participation": 0.2}),
        ({"participation": 0.04}, {"participation": 0.1}),
        ({"participation": 0.999}, {}),
        (
            {"participation": 0.1, "clients": 3, "partition": "iid"},
            {"participation": 1 / 3, "clients": 3, "partition": "iid"},
        ),
    ],
)
def test_the_same_numbers_have_one_id(raw: dict[str, Any], same: dict[str, Any]) -> None:
    assert parse_experiment(raw).run_id == parse_experiment(same).run_id


@pytest.mark.parametrize(
    "raw",
    [
        {"seed": 1},
        {"lr": 0.02},
        {"bias": True},
        {"precision": "fp64"},
        {"norm": {"name": "gn", "groups": 4}},
        {"kind": "centralized"},
        {"augment": "flip-crop"},
        {"val_fraction": 0.1},
        {"partition": "dirichlet:0.1", "min_size": 2},
        {"participation": 0.26},
        {"norm": {"name": "gn", "groups": 1}},
        {"local_epochs": 1},
        {"kind": "centralized", "local_epochs": 1},
    ],
)
def test_other_numbers_have_another_id(raw: dict[str, Any]) -> None:
    assert parse_experiment(raw).run_id != parse_experiment({}).run_id


def test_two_spellings_of_one_component_keep_their_names() -> None:
    grouped = parse_experiment({"norm": {"name": "gn", "groups": 1}, "participation": 0.24})
    assert isinstance(grouped, Federated)
    assert (grouped.norm.label(), grouped.participation, grouped.cohort_size) == ("gn(groups=1)", 0.24, 2)
    assert parse_experiment(grouped.to_json()) == grouped


@pytest.mark.parametrize("partition", ["classes:1", "iid", "shards:2"])
def test_min_size_is_refused_where_the_partition_is_not_drawn_again(partition: str) -> None:
    with pytest.raises(InvalidExperiment, match=r"^min_size: .*is drawn once, so that min_size cannot change the size"):
        parse_experiment({"partition": partition, "min_size": 2})
    assert parse_experiment({"partition": partition, "min_size": 1}).run_id
    assert parse_experiment({"partition": "dirichlet:0.5", "min_size": 2}).run_id


def test_augmentation_is_the_data_sets_own() -> None:
    assert parse_experiment({}).augment == "none"
    assert parse_experiment({"dataset": "cifar10"}).augment == "flip-crop"
    assert parse_experiment({"dataset": "cifar10", "augment": "none"}).augment == "none"


def test_epochs_replace_steps() -> None:
    epochs = parse_experiment({"local_epochs": 2})
    assert (epochs.local_steps, epochs.local_epochs) == (None, 2)
    assert epochs.identity() == {**parse_experiment({}).identity(), "local_epochs": {"epochs": 2, "version": 2}}
    assert parse_experiment(epochs.to_json()) == epochs
    assert parse_experiment({"E": None, "local_epochs": 2}) == epochs


def test_seeds_share_a_cell() -> None:
    one, two, other = (parse_experiment(raw) for raw in ({"seed": 1}, {"seed": 2}, {"seed": 1, "lr": 1}))
    assert one.cell_id == two.cell_id != other.cell_id
    assert parse_experiment({}).run_id == parse_experiment({}).cell_id  # seed 0 is the default and left out
    assert one.cell_id == parse_experiment({"rounds": 7}).cell_id


def test_a_fixed_component_has_new_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    before = parse_experiment({}).run_id
    monkeypatch.setattr(METHODS["fedavg"], "version", 2)
    assert parse_experiment({}).run_id != before


def test_a_new_field_at_its_default_keeps_old_ids() -> None:
    class Later(Federated):
        knob: float = 0.5

    assert Later(kind="federated").run_id == Federated().run_id
    assert Later(kind="federated", knob=1.0).run_id != Federated().run_id


def test_a_new_component_field_at_its_default_keeps_old_ids() -> None:
    fedavg: Any = METHODS["fedavg"]

    @dataclass(frozen=True)
    class Later(fedavg):  # type: ignore[misc]
        knob: float = 0.5

    assert Later().identity() == fedavg().identity()


@pytest.mark.parametrize("raw", GOLDEN_IDS.values())
def test_json_and_back(raw: dict[str, Any]) -> None:
    experiment = parse_experiment(raw)
    back = parse_experiment(json.loads(json.dumps(experiment.to_json())))
    assert back == experiment
    assert hash(back) == hash(experiment)
    assert back.run_id == experiment.run_id


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ({"rounds": 25}, {10, 20, 25}),
        ({"rounds": 5}, {5}),
        ({"kind": "rank", "rounds": 25}, {0, 10, 20, 25}),
        ({"kind": "sharpness"}, {0}),
    ],
)
def test_the_last_round_is_evaluated_and_in_studies_round_0(raw: dict[str, Any], expected: set[int]) -> None:
    assert parse_experiment(raw).evaluated_rounds() == expected


@pytest.mark.parametrize("before", [False, True])
def test_evaluated_rounds_equal_their_explicit_set(before: bool) -> None:
    for rounds, every in product(range(13), range(1, 15)):
        expected = frozenset((*range(0 if before else every, rounds + 1, every), rounds))
        lazy = EvaluatedRounds(rounds, every, before)
        assert lazy == expected
        assert hash(lazy) == hash(expected)
        assert list(lazy) == sorted(expected)
        assert len(lazy) == len(expected)
        assert {round for round in range(-1, 15) if round in lazy} == expected
        assert lazy <= expected
        assert not lazy <= expected - {rounds}
        assert expected >= lazy
        assert lazy - expected == frozenset()


def test_evaluated_rounds_take_no_memory() -> None:
    rounds = EvaluatedRounds(10**12, 1, before_the_first=True)
    assert (len(rounds), 10**11 in rounds, 10**12 + 1 in rounds) == (10**12 + 1, True, False)
    assert list(islice(rounds, 3)) == [0, 1, 2]
    assert not rounds <= frozenset({0, 1})
    assert rounds != frozenset({0, 1})


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        ({"rounds": 10**12}, "rounds: expected a value of at most 10000000, got 1000000000000"),
        ({"rounds": 1e300}, "rounds: expected a value "),
        ({"kind": "rank", "rounds": 10**7 + 1}, "rounds: expected a value of at most 10000000"),
        ({"kind": "sharpness", "lr": 0.1, "rounds": 10**8}, "rounds: expected a value of at most"),
        ({"eval_every": 10**8}, "eval_every: expected a value of at most 10000000"),
        ({"clients": 1e300}, "clients: expected a value less than 9223372036854775808"),
        (
            {"rounds": 10**7, "eval_every": 1},
            "eval_every: every 1 of 10,000,000 rounds is more than the 100,000 evaluations that a run may have: use at "
            "least 100",
        ),
        ({"kind": "rank", "rounds": 10**6, "eval_every": 9}, "eval_every: every 9 of 1,000,000 rounds is more than"),
        ({"kind": "deep", "lr": 0.1, "rounds": 10**6, "eval_every": 1}, "use at least 10"),
    ],
)
def test_rounds_and_evaluations_are_bounded(raw: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidExperiment) as caught:
        parse_experiment(raw)
    assert says in str(caught.value)
    assert parse_experiment({"rounds": 10**7, "eval_every": 100}).rounds == 10**7


@pytest.mark.parametrize(
    ("raw", "name"),
    [
        ({}, "acc"),
        ({"kind": "centralized"}, "acc"),
        ({"kind": "sharpness"}, "lambda_max"),
        ({"kind": "sharpness", "lr": 0.1, "rounds": 5}, "lambda_max"),
        ({"kind": "rank"}, "rank"),
        ({"kind": "deep"}, "rank"),
        ({"kind": "deep", "lr": 0.1}, "test_acc"),
    ],
)
def test_every_kind_names_its_headline_number(raw: dict[str, Any], name: str) -> None:
    assert headline_of(parse_experiment(raw).to_json()) == name
    assert name in METRICS


def test_a_plan_may_name_an_unknown_kind() -> None:
    assert headline_of({"kind": "gone"}) == "acc"


def test_experiments_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Federated().lr = 1.0


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"lrr": 1}, "unknown field 'lrr' of a federated experiment; did you mean 'lr'?"),
        ({"E": 1, "local_steps": 1}, "E: E and local_steps are the same field"),
        ({"E": 1, "local_epochs": 1}, "local_epochs: give either local_steps (E) or local_epochs, got 1 and 1"),
        ({"E": None}, "local_epochs: give either local_steps (E) or local_epochs, got None and None"),
        ({"local_epochs": 0}, "local_epochs: expected a value of at least 1, got 0"),
        ({"kind": "fedrated"}, "kind: unknown kind 'fedrated'; did you mean 'federated'?"),
        ({"kind": "centralized", "clients": 3}, "unknown field 'clients' of a centralized experiment"),
        ({"lr": "0.1"}, "lr: expected a number, got '0.1'"),
        ({"norm": "lnn"}, "norm: unknown norm 'lnn'; did you mean 'ln'?"),
        ({"norm": {"name": "gn", "groups": "2"}}, "norm.groups: expected"),
        ({"norm": {"name": "gn", "groups": 3}}, "norm: gn(groups=3) in mlp: groups=3 does not divide"),
        ({"norm": "bn", "batch_size": 1}, "batch_size: bn needs at least 2 samples in a batch"),
        ({"model": "cnn"}, "model: cnn on digits: images of 8x8 pixels are too small"),
        ({"partition": "classes:11"}, "partition: classes:11 of digits among 10 clients"),
        (
            {"clients": 1443},
            "clients: digits: 1443 clients with at least 1 training samples each need 1443, the set has",
        ),
        (
            {"partition": "dirichlet:1", "min_size": 145},
            "clients: digits: 10 clients with at least 145 training samples each need 1450, the set has 1442; lower",
        ),
        ({"probes": "drift"}, "probes: expected a list of probes"),
        ({"kind": "sharpness", "rounds": 5}, "rounds: nothing trains without lr: rounds must be 0, got 5"),
        ({"kind": "deep", "rounds": 5}, "rounds: nothing trains without lr: rounds must be 0, got 5"),
        (
            {"kind": "sharpness", "normalized": "ln-all", "outputs": 2},
            "outputs: ln-all needs at least 3 outputs, got 2",
        ),
        (
            {"kind": "sharpness", "normalized": "bn-last", "samples": 1},
            "samples: bn-last is over samples, and there is",
        ),
        ({"kind": "rank", "normalized": "bn", "width": 1}, "samples: bn is over samples, and there is only 1"),
        (
            {"kind": "sharpness", "norm": "ln"},
            "unknown field 'norm' of a sharpness experiment; did you mean 'normalized'",
        ),
        ({"kind": "rank", "probes": ["drift"]}, "unknown field 'probes' of a rank experiment"),
        ({"kind": "rank", "activation": "tanh"}, "activation: expected 'linear' or 'relu', got 'tanh'"),
        ({"kind": "deep", "batch_size": 1}, "batch_size: expected a value of at least 2, got 1"),
    ],
)
def test_wrong_experiments_name_the_field(raw: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidExperiment) as caught:
        parse_experiment(raw)
    assert str(caught.value).startswith(message)


def test_names_of_other_frameworks_lead_to_fields() -> None:
    known = set(fields_of_all_kinds())
    assert {field for fields in SYNONYMS.values() for field in fields} <= known
    assert not known & SYNONYMS.keys()
    with pytest.raises(InvalidExperiment) as caught:
        parse_experiment({"learning_rate": 1})
    hint, _, names = str(caught.value).partition("? known: ")
    assert hint == "unknown field 'learning_rate' of a federated experiment; did you mean 'lr'"
    assert names.split(", ") == sorted({*KINDS["federated"].model_fields, "E"}, key=str.lower)


@pytest.mark.parametrize("kind", KINDS)
def test_fields_by_themselves_agree_with_whole_experiments(kind: str) -> None:
    default = KINDS[kind]()
    for field, raw in default.to_json().items():
        assert parse_field(kind, field, raw) == getattr(default, field)
    with pytest.raises(FieldProblem, match="expected a whole number"):
        parse_field(kind, "rounds", "many")


def test_digest_is_of_the_canonical_json() -> None:
    assert digest({"b": 1, "a": [1.0, "ü"]}) == digest({"a": [1.0, "ü"], "b": 1})
    assert canonical_json({"b": 1e-05, "a": True}) == '{"a":true,"b":1e-05}'
    with pytest.raises(ValueError, match="Out of range"):
        canonical_json(float("nan"))
