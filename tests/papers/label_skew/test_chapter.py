"""The chapter "Why" on synthetic sweeps with known verdicts, and on real training."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from flbench.config import parse_experiment
from flbench.data.datasets import load
from flbench.engine.model_access import ModelAccess
from flbench.engine.setup import make_network, make_trainer
from flbench.papers.label_skew.chapter import NO_PROBES, TURN_ON, blocks, synthesize
from flbench.papers.label_skew.correlations import Mechanism, RankCorrelation
from flbench.probes import Observation
from flbench.probes.features import Features
from flbench.report.blocks import Heading, Paragraph
from flbench.report.board import Leaderboard
from flbench.report.claims import Claim
from flbench.report.correlation import Correlation
from flbench.report.write.json import to_json
from flbench.report.write.terminal import to_terminal
from tests.papers.in_memory import Memory
from tests.papers.label_skew.probed_sweeps import (
    METHODS,
    NORMS,
    PARTITIONS,
    Measured,
    board,
    finish,
    probed_runs,
    syntheses_of,
)
from tests.report.stores import draw, experiment, html_of, leaderboard_of, markdown_of

GOLDEN = Path(__file__).parents[2] / "golden" / "why.md"


def mechanism(name: str, measure: Any, **axes: Any) -> Mechanism:
    (found,) = syntheses_of(board(probed_runs(measure, **axes)))
    return next(one for one in found.mechanisms if one.name == name)


def wiggle(request: Any) -> float:
    """Return a small number that differs between rows, so that there are no ties."""
    return 1e-3 * METHODS.index(request.method.name) + 1e-4 * request.seed


@pytest.mark.parametrize(
    ("interval", "way"),
    [((0.1, 0.5), "rises"), ((-0.5, -0.1), "falls"), ((-0.1, 0.2), "flat"), ((-0.1, 0.6), "open"), (None, "open")],
)
def test_the_direction_of_a_correlation(interval: tuple[float, float] | None, way: str) -> None:
    assert RankCorrelation("", "", Correlation(30, 10, 0.2, interval), "rows").direction == way


# The claims about mechanisms, on sweeps whose measurements are a function of the experiment.


RATES = tuple(10.0 ** (k / 2) for k in range(-6, 2))  # 0.001 to 3.16


def stable(request: Any, factor: float = 1.0) -> Measured:
    """A norm with 2 / lambda_max = 10^(index / 2 - 2.5) that works up to that rate, or to ``factor`` times it."""
    rate = 10 ** (NORMS.index(request.norm.name) / 2 - 2.5)
    works = request.lr <= 1.01 * factor * rate
    return Measured(0.9 if works else 0.3, sharp=2.2 / request.lr, initial_sharp=2 / rate)


def against_stability(request: Any) -> Measured:
    return stable(request, factor=10.0 ** (3 - NORMS.index(request.norm.name)))


def but_bn(request: Any) -> Measured:
    """A row that never learns is left out."""
    return Measured(0.1, initial_sharp=1) if request.norm.name == "bn" else stable(request)


def by_rank(request: Any) -> Measured:
    rank = 1 + NORMS.index(request.norm.name) + request.lr + wiggle(request)
    return Measured(0.9 + rank / 200, rank=rank)


def by_rank_between_norms(request: Any) -> Measured:
    own, norm = math.log10(request.lr) / 10 + wiggle(request), NORMS.index(request.norm.name)
    return Measured((1 + norm - own) / 20, rank=1 + norm + own)


def against_rank(request: Any) -> Measured:
    return Measured(0.9 - request.lr / 2 - wiggle(request), rank=1 + request.lr + wiggle(request))


def growth_of(request: Any) -> float:
    """Without normalization: from 1.2 to some hundreds, over methods and learning rates."""
    if request.norm.name != "none":
        return 1.0
    return float(1.2 * (1 + 10 * request.lr) ** (0.3 * METHODS.index(request.method.name) + 0.1))


def loss_of(request: Any) -> float:
    growth = growth_of(request)
    return 0.1 * max(0.0, math.log10(growth / 2)) + (1e-5 * growth if request.norm.name == "none" else 0)


def grows(acc: Any) -> Any:
    """Cells that begin with features of length 1."""
    return lambda request: Measured(acc(request), norm=growth_of(request))


def is_fn(request: Any) -> bool:
    return bool(request.norm.name == "fn")


def losing_by_growth(request: Any) -> float:
    return 0.7 + 0.05 * math.log10(request.lr) - loss_of(request)


def gaining_without_growth(request: Any) -> float:
    return 0.8 - loss_of(request) + 0.1 * is_fn(request) + wiggle(request)


def losing_where_skewed(request: Any) -> float:
    is_skewed = request.partition.name == "classes"
    lost = loss_of(request) if is_skewed else 0.02 * (request.norm.name == "none")
    return 0.7 + 0.05 * math.log10(request.lr) - lost


def open_at_best_rates(request: Any) -> float:
    """At equal rates the gain falls with the growth; at each row's best rate it goes up and down over the methods."""
    if is_fn(request):
        return 0.9
    if request.lr == 1:
        return 0.8 + 0.01 * (METHODS.index(request.method.name) * 3 % len(METHODS))
    return 0.5 + growth_of(request) / 1e4


TWO_METHODS: dict[str, Any] = {"rates": RATES, "methods": METHODS[:2]}
THREE_NORMS: dict[str, Any] = {"norms": NORMS[:3]}
#: As few as have an interval.
SIX: dict[str, Any] = {"methods": METHODS[:6], "norms": NORMS[:6], "rates": (0.1, 1.0)}


@pytest.mark.parametrize(
    ("name", "measure", "axes", "verdict", "said"),
    [
        ("rates", stable, TWO_METHODS, "holds", [
            "Highest learning rate that works",
            "rho 1.00 (1.00 to 1.00; n = 14 in 7 norms x 2 methods)",
            "That rate is 1 (1 to 1) times 2 / lambda_max",
            "lr x lambda_max / 2 is 1.1 (1.1 to 1.1), below 1 in 0 of 14 cells",
        ]),
        ("rates", against_stability, {**TWO_METHODS, "methods": ["fedavg"]}, "does not hold", ["rho -1.00"]),
        ("rates", stable, {**TWO_METHODS, **THREE_NORMS}, "inconclusive", [
            "rho 1.00 (no interval: n = 6 in only 3 norms x 2 methods)",
        ]),
        ("rates", but_bn, TWO_METHODS, "holds", [
            "n = 12 in 6 norms", "Left out: 2 rows whose best rate is not 2 times better than guessing.",
        ]),
        ("rank", by_rank, SIX, "holds", [
            "Over all cells of a column it rises with the rank, rho 1.00",
            "among cells above 90 % accuracy it rises with the rank",
            "within one norm it rises with the rank",
        ]),
        ("rank", by_rank_between_norms, SIX, "in part", [
            "at the best learning rates within one norm it falls with the rank, rho -1.00",
        ]),
        ("rank", against_rank, SIX, "does not hold", ["Over all cells of a column it falls with the rank"]),
        ("rank", by_rank, {"methods": ["fedavg"], "norms": ["none"]}, "inconclusive", [
            "rho 1.00 (no interval: n = 3 in only 1 norms)",
        ]),
        ("norms", grows(gaining_without_growth), THREE_NORMS, "in part", [
            "Where none's norms grow less than twofold the gain is +10.0 points",
        ]),
        ("norms", grows(lambda request: 0.9 if is_fn(request) else 0.5 + growth_of(request) / 1e4), THREE_NORMS,
         "does not hold", []),
        ("norms", grows(open_at_best_rates), THREE_NORMS, "inconclusive", []),
        ("norms", grows(losing_where_skewed), {**THREE_NORMS, "partitions": PARTITIONS}, "in part", [
            "(by partition, iid: open, classes:1: rises with it)",
        ]),
        ("norms", lambda request: None if request.norm.name == "none" else Measured(0.9), THREE_NORMS, "not run", []),
    ],
)  # fmt: skip
def test_the_verdict_on_a_mechanism(
    name: str, measure: Any, axes: dict[str, Any], verdict: str, said: list[str]
) -> None:
    found = mechanism(name, measure, **axes).claim
    assert found.verdict == verdict, found.evidence
    assert [text for text in said if text not in found.evidence] == []


def test_bounded_norms_explain_a_gain_that_grows_with_the_norms() -> None:
    found = mechanism("norms", grows(losing_by_growth), **THREE_NORMS)
    assert found.claim.verdict == "holds", found.claim.evidence
    growth, norms = found.means
    assert [line.names[0] for line in growth.lines] == ["below 2", "2 to 10", "10 and more"]
    below = growth.lines[0].means[-1]
    assert below is not None and abs(below.mean) < 1e-3
    assert norms.lines[0].names[0] == "none" and ("fn", "1 (1 to 1)") in [line.names for line in norms.lines]


def test_the_evidence_names_features_that_are_longer_from_the_start() -> None:
    def measure(request: Any) -> Measured:
        return Measured(0.5 + wiggle(request), norm=8, initial_norm=0.5 if request.norm.name == "none" else 8)

    assert "fn's features are 16.0 times as long as none's" in mechanism("norms", measure, **THREE_NORMS).claim.evidence


def test_rows_with_several_rates_have_no_best_one_where_nothing_is_tuned() -> None:
    """Each rate is then a column: cells with different rates are no pairs."""
    measure = grows(lambda request: 0.5 + request.lr / 4 + 0.1 * is_fn(request))
    (found,) = syntheses_of(board(probed_runs(measure, **THREE_NORMS), tune=()))
    _, rank, norms = (one.claim.evidence for one in found.mechanisms)
    assert rank.endswith(
        "at the best learning rates within one norm the direction is open, rho is not defined (n = 0)."
    )
    assert "at the best ones rho is not defined (n = 0)" in norms
    assert "No cells of fn and none are at their best learning rates." in norms


def test_correlations_by_partition_stand_before_that_of_all() -> None:
    found = mechanism("rates", stable, partitions=PARTITIONS, **TWO_METHODS)
    assert [one.where for one in found.correlations] == 2 * ["iid", "classes:1", "everywhere"]


# what is read, and what is said


def test_records_of_round_0_are_read_once() -> None:
    axes: dict[str, Any] = {"methods": METHODS[:4], "norms": NORMS[:3], "partitions": PARTITIONS, "seeds": (0, 1)}
    collection = probed_runs(lambda request: Measured(0.5 + wiggle(request), norm=2), **axes)
    sections, source = board(collection).sections, cast(Any, collection.source)
    before = source.reads
    (found,) = synthesize(sections, collection)
    assert len(collection.runs) == 4 * 3 * 2 * 3 * 2
    assert source.reads - before == 3 * 2 * 2, "norms, partitions and seeds"
    assert len(found.cells) == 72 and len(found.tuned) == 24
    cells = found.cells
    assert (cells.growth == 2).all() and (cells.first_lambda == 1).all() and (cells.first_local_lambda == 2).all()


def test_without_probes_the_chapter_says_how_to_turn_them_on() -> None:
    collection = probed_runs(lambda request: Measured(0.5), methods=["fedavg"], norms=["none"])
    for run in collection.runs:
        assert isinstance(run.record, dict)
        del run.record["probes"]
    found = board(collection)
    assert f"## Why\n\n{NO_PROBES}\n" in markdown_of(found)
    assert "--set 'probes={features: 50, drift: 50, sharpness: 100}'" in NO_PROBES
    assert to_json(found)["why"][0]["runs_with_probes"] == 0


def test_sections_without_probes_stand_in_one_sentence() -> None:
    (probed,) = syntheses_of(board(probed_runs(lambda request: Measured(0.5), methods=["fedavg"], norms=["none"])))
    others = [replace(probed, title=title, seen=0) for title in ("cifar10, cnn", "mnist, lenet")]
    found = list(blocks((others[0], probed, others[1]), {}))
    assert [one.text for one in found if isinstance(one, Heading)] == ["Why", f"Why: {probed.title}"]
    last = f"No finished run of the other sections recorded probes (cifar10, cnn; mnist, lenet). {TURN_ON}"
    assert found[-1] == Paragraph(last)


def test_the_chapter_is_there_only_on_request() -> None:
    found = leaderboard_of(probed_runs(lambda request: Measured(0.5), methods=["fedavg"], norms=["none"]))
    assert "## Why" not in markdown_of(found) and "why" not in to_json(found)


def test_a_report_about_losses_judges_no_mechanism() -> None:
    collection = probed_runs(lambda request: Measured(0.5), methods=["fedavg"], norms=["none"])
    for run in collection.runs:
        assert isinstance(run.record, dict)
        run.record["loss"] = 1.0
    assert "this report's metric is none" in markdown_of(board(collection, metric="loss"))


def golden_measure(request: Any) -> Measured:
    rank = 1 + NORMS.index(request.norm.name) + request.lr + wiggle(request)
    alone = request.method.name == "local-only"
    return Measured(
        0.9 - loss_of(request) + 0.01 * rank + wiggle(request) if not alone else 0.1,
        rank=rank,
        norm=growth_of(request),
        sharp=1 / request.lr,
        initial_sharp=1.0 + NORMS.index(request.norm.name),
        overfit=(0.9, 0.2 if request.norm.name == "none" else 0.8 + 0.01 * request.seed),
    )


@pytest.fixture(scope="module")
def golden() -> Leaderboard:
    return board(probed_runs(golden_measure, norms=NORMS[:3], partitions=PARTITIONS, seeds=(0, 1)))


def test_golden_section(golden: Leaderboard) -> None:
    text = markdown_of(golden)
    text = text[text.index("## Why") : text.index("## How to read this")]
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(text, encoding="utf-8")
    assert text == GOLDEN.read_text(encoding="utf-8"), "a wanted change is accepted by UPDATE_GOLDEN=1"


def test_json_terminal_and_page_agree(golden: Leaderboard) -> None:
    plain = json.loads(json.dumps(to_json(golden), allow_nan=False))["why"][0]
    assert [one["verdict"] for one in plain["answers"]] == ["inconclusive", "inconclusive", "in part"]
    assert plain["answers"][1]["findings"][0]["n"] == 63
    assert len(plain["cells"]) == 126 and plain["cells"][0]["lambda_start"] == pytest.approx(1.0)
    page, text = html_of(golden), markdown_of(golden)
    for answer in plain["answers"]:
        assert answer["text"] in text and f"<strong>{answer['question']}: {answer['verdict']}.</strong>" in page
    lines = [str(part) for part in to_terminal(golden, 100)]
    assert any(line.startswith("Accuracy follows the rank of the features: inconclusive.") for line in lines)


# figures


def test_features_over_rounds_of_local_training_and_of_the_baseline() -> None:
    collection = probed_runs(golden_measure, methods=["fedavg"], norms=NORMS[:2])
    drawings = draw(board(collection), "features")
    assert [one.name for one in drawings] == ["features-digits-mlp-fedavg-classes-1-E-10-lr-1"]
    spectrum, share, norms, longest, others, *_ = drawings[0].figure.axes
    assert [list(line.get_xdata()) for line in spectrum.lines] == 2 * [[1, 2, 3]]
    assert spectrum.lines[0].get_ydata() == pytest.approx([1, 0.1, 0.01])
    assert share.lines[0].get_ydata() == pytest.approx([40, 50, 50])
    assert norms.lines[1].get_ydata() == pytest.approx([1, 1, 1])
    assert len(longest.lines) == len(others.lines) == 2, "a line a norm"
    assert longest.get_ylim() == others.get_ylim()


@pytest.mark.slow
def test_features_at_two_rounds_are_points_without_a_line() -> None:
    collection = probed_runs(golden_measure, methods=["fedavg"], norms=NORMS[:2], at=(0, 20))
    (drawing,) = draw(board(collection), "features")
    _, share, norms, longest, others, *_ = drawing.figure.axes
    points = [line for panel in (share, norms, longest, others) for line in panel.lines]
    assert {line.get_linestyle() for line in points} == {"None"}
    assert [line.get_ydata().item() for line in share.lines] == pytest.approx([40, 50, 40, 50])
    assert len(points) == 4 * 4
    assert "mean norm of the others. Pale: before training." in drawing.caption
    (legend,) = drawing.figure.legends
    assert [text.get_text() for text in legend.get_texts()][-2:] == ["pale: before training", "full colour: after it"]


# theorem 1, figures 2 and 3


def claims(**axes: Any) -> list[Claim]:
    memory = Memory()
    for norm, seed, method in product(("none", "fn"), range(3), ("local-only", "fedavg")):
        request = experiment(method=method, norm=norm, partition="classes:1", seed=seed, probes={"features": 10})
        finish(memory, request, axes[norm](seed))
    (found,) = syntheses_of(board(memory.collection()))
    return list(found.claims)


def test_collapse_without_normalization_and_not_with_fn() -> None:
    found = claims(
        none=lambda seed: Measured(0.1, norm=10 + seed, share=0.999 + 1e-4 * seed, rank=1.001, overfit=(0.8, 0.1)),
        fn=lambda seed: Measured(0.1, norm=1, share=0.8 + 0.01 * seed, overfit=(0.9, 0.7 + 0.01 * seed)),
    )
    assert [one.verdict for one in found] == ["holds"] * 4
    assert (
        "none: factor 11, shown to be above 1 in 1 of 1 setting, below in 0 (" in found[0].evidence
        and "; fn: 1;" in found[0].evidence
    )
    assert (
        "fn: 81 % (before training 40 %), shown to be above 99 % in 0 of 1 setting, below in 1 (" in found[1].evidence
    )
    assert "fn less none: -18.91 ± 2.46 points (paired by seed, n = 3)" in found[2].evidence
    assert found[3].evidence.startswith("mean class accuracy lost: none 70.0 points, fn 19.0 points")


def test_claims_that_the_runs_contradict() -> None:
    found = claims(
        none=lambda seed: Measured(0.1, norm=1 - 0.01 * seed, share=0.5, overfit=(0.8, 0.8 - 0.01 * seed)),
        fn=lambda seed: Measured(0.1, norm=2, share=0.995 + 0.001 * seed, overfit=(0.8, 0.1)),
    )
    assert [one.verdict for one in found] == ["does not hold"] * 4


@pytest.mark.parametrize("norm", ["none", "fn"])
def test_theorem_1_on_digits(norm: str) -> None:
    """One class: without normalization norms grow and features collapse, with FN norms stay and features do less."""
    torch.set_num_threads(1)
    request: Any = parse_experiment(
        {"method": "local-only", "norm": norm, "partition": "classes:1", "clients": 10, "lr": 0.1, "E": 10, "rounds": 9,
         "model": {"name": "mlp", "widths": [64, 64]}}
    )  # fmt: skip
    data = load(request.dataset)
    trainer, _ = make_trainer(request, data, device="cpu", executor="stacked", pool=1)
    access = ModelAccess(trainer, make_network(request, data, "cpu"), request.lr)

    def look() -> dict[str, Any]:
        return Features().measure(Observation(trainer.round, trainer.x, trainer.x, None, None, access))

    first = look()
    for _ in range(9):
        trainer.step()
    last = look()
    if norm == "none":
        assert last["norm"] > 5 * first["norm"]
        assert last["first_share"] > 0.99 and last["rank"] < 1.02
        assert last["singular"][1] < 0.05 * last["singular"][0]
        assert max(last["head_norms"]) > 1.5 * max(first["head_norms"])
    else:
        assert first["norm"] == pytest.approx(8) and last["norm"] == pytest.approx(8)  # sqrt(64)
        assert last["first_share"] < 0.98 and last["rank"] > 1.04
        assert last["singular"][1] > 0.07 * last["singular"][0]
