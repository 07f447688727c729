"""The chapter "Why" on synthetic sweeps with known verdicts, and on real training."""

from __future__ import annotations

import json
import math
import os
import re
from base64 import b64decode
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from PIL import Image

from flbench.config import parse_experiment
from flbench.data.datasets import load
from flbench.engine.model_access import ModelAccess
from flbench.engine.setup import make_network, make_trainer
from flbench.papers.label_skew import figures
from flbench.papers.label_skew.chapter import NO_PROBES, TURN_ON, blocks, synthesize
from flbench.papers.label_skew.correlations import Mechanism, RankCorrelation
from flbench.probes import Observation
from flbench.probes.features import Features
from flbench.report.blocks import Heading, Paragraph
from flbench.report.claims import Claim
from flbench.report.correlation import Correlation
from flbench.report.figures.drawing import save_as
from flbench.report.runs import Collection
from flbench.report.write.json import to_json
from flbench.report.write.terminal import to_terminal
from flbench.sweeps import load_sweep
from tests.papers.label_skew.probed_sweeps import (
    METHODS,
    NORMS,
    Measured,
    Records,
    board,
    finished,
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


# (a) learning rates


RATES = tuple(10.0 ** (k / 2) for k in range(-6, 2))  # 0.001 to 3.16


def stable(request: Any, factor: float = 1.0) -> Measured:
    """A norm with 2 / lambda_max = 10^(index / 2 - 2.5) that works up to that rate, or to ``factor`` times it."""
    rate = 10 ** (NORMS.index(request.norm.name) / 2 - 2.5)
    works = request.lr <= 1.01 * factor * rate
    return Measured(0.9 if works else 0.3, sharp=2.2 / request.lr, initial_sharp=2 / rate)


def test_the_range_follows_the_sharpness() -> None:
    found = mechanism("rates", stable, rates=RATES, methods=METHODS[:2])
    assert found.claim.verdict == "holds"
    assert found.claim.evidence.startswith("Highest learning rate that works")
    assert "rho 1.00 (1.00 to 1.00; n = 28 in 7 norms x 2 methods)" in found.claim.evidence
    assert "That rate is 1 (1 to 1) times 2 / lambda_max" in found.claim.evidence
    assert "lr x lambda_max / 2 is 1.1 (1.1 to 1.1), below 1 in 0 of 28 cells" in found.claim.evidence
    assert [one.where for one in found.correlations] == 2 * ["iid", "classes:1", "everywhere"]


def test_a_range_that_falls_with_the_sharpness_rate_refutes_the_claim() -> None:
    def measure(request: Any) -> Measured:
        return stable(request, factor=10.0 ** (3 - NORMS.index(request.norm.name)))

    found = mechanism("rates", measure, rates=RATES, methods=METHODS[:2])
    assert found.claim.verdict == "does not hold" and "rho -1.00" in found.claim.evidence


def test_three_norms_are_too_few_for_the_range() -> None:
    found = mechanism("rates", stable, rates=RATES, norms=NORMS[:3])
    assert found.claim.verdict == "inconclusive"
    assert "rho 1.00 (no interval: n = 42 in only 3 norms x 7 methods)" in found.claim.evidence


def test_rows_that_never_learn_or_are_not_finished_are_left_out_and_counted() -> None:
    def measure(request: Any) -> Measured | None:
        return Measured(0.1, initial_sharp=1) if request.norm.name == "bn" else stable(request)

    found = mechanism("rates", measure, rates=RATES, methods=METHODS[:2])
    assert "Left out: 4 rows whose best rate is not 2 times better than guessing." in found.claim.evidence
    assert found.correlations[-1].correlation.n == 24


# (b) rank


def test_accuracy_follows_the_rank() -> None:
    def measure(request: Any) -> Measured:
        rank = 1 + NORMS.index(request.norm.name) + request.lr + wiggle(request)
        return Measured(0.9 + rank / 200, rank=rank)

    found = mechanism("rank", measure)
    assert found.claim.verdict == "holds" and found.claim.evidence.startswith(
        "Over all cells of a column it rises with the rank, rho 1.00"
    )
    assert "among cells above 90 % accuracy it rises with the rank" in found.claim.evidence
    assert "within one norm it rises with the rank" in found.claim.evidence


def test_between_norms_alone_it_follows_in_part() -> None:
    def measure(request: Any) -> Measured:
        own = math.log10(request.lr) / 10 + wiggle(request)
        return Measured((1 + NORMS.index(request.norm.name) - own) / 20, rank=1 + NORMS.index(request.norm.name) + own)

    found = mechanism("rank", measure)
    assert found.claim.verdict == "in part"
    assert "at the best learning rates within one norm it falls with the rank, rho -1.00" in found.claim.evidence


def test_more_rank_can_go_with_less_accuracy() -> None:
    found = mechanism(
        "rank", lambda request: Measured(0.9 - request.lr / 2 - wiggle(request), rank=1 + request.lr + wiggle(request))
    )
    assert found.claim.verdict == "does not hold" and found.claim.evidence.startswith(
        "Over all cells of a column it falls with the rank"
    )


def test_few_cells_are_inconclusive() -> None:
    found = mechanism(
        "rank",
        lambda request: Measured(0.5 + request.lr / 4, rank=1 + request.lr),
        methods=["fedavg"],
        norms=["none"],
        partitions=["iid"],
    )
    assert found.claim.verdict == "inconclusive"
    assert "rho 1.00 (no interval: n = 3 in only 1 norms)" in found.claim.evidence


# (c) bounded norms


def growth_of(request: Any) -> float:
    """Without normalization: from 1.2 to some hundreds, over methods and learning rates."""
    return (
        1.0
        if request.norm.name != "none"
        else 1.2 * (1 + 10 * request.lr) ** (0.3 * METHODS.index(request.method.name) + 0.1)
    )


def grows(acc: Any) -> Any:
    """Cells that begin with features of length 1."""
    return lambda request: Measured(acc(request), norm=growth_of(request))


def loss_of(request: Any) -> float:
    return 0.1 * max(0.0, math.log10(growth_of(request) / 2)) + (
        1e-5 * growth_of(request) if request.norm.name == "none" else 0
    )


def test_bounded_norms_explain_a_gain_that_grows_with_the_norms() -> None:
    found = mechanism("norms", grows(lambda request: 0.7 + 0.05 * math.log10(request.lr) - loss_of(request)))
    assert found.claim.verdict == "holds", found.claim.evidence
    growth, norms = found.means
    assert [line.names[0] for line in growth.lines] == ["below 2", "2 to 10", "10 and more"]
    below = growth.lines[0].means[-1]
    assert below is not None and abs(below.mean) < 1e-3
    assert norms.lines[0].names[0] == "none" and ("fn", "1 (1 to 1)") in [line.names for line in norms.lines]


def test_a_gain_without_growth_is_explained_in_part() -> None:
    found = mechanism(
        "norms", grows(lambda request: 0.8 - loss_of(request) + 0.1 * (request.norm.name == "fn") + wiggle(request))
    )
    assert found.claim.verdict == "in part", found.claim.evidence
    assert "Where none's norms grow less than twofold the gain is +10.0 points" in found.claim.evidence


def test_a_gain_that_has_nothing_to_do_with_growth() -> None:
    found = mechanism("norms", grows(lambda request: 0.5 + 0.1 * (request.norm.name == "fn") / growth_of(request)))
    assert found.claim.verdict in ("does not hold", "inconclusive")
    shrinking = grows(lambda request: 0.9 if request.norm.name == "fn" else 0.5 + growth_of(request) / 1e4)
    assert mechanism("norms", shrinking).claim.verdict == "does not hold"


def test_a_gain_whose_direction_is_open_at_the_best_learning_rates_is_not_decided() -> None:
    """At equal rates it falls with the growth; at each row's best rate it goes up and down over the methods."""

    def acc(request: Any) -> float:
        if request.norm.name == "fn":
            return 0.9
        if request.lr == 1:
            return 0.8 + 0.01 * (METHODS.index(request.method.name) * 3 % len(METHODS))
        return 0.5 + growth_of(request) / 1e4

    found = mechanism("norms", grows(acc))
    assert found.claim.verdict == "inconclusive", found.claim.evidence


def test_growth_can_explain_one_partition() -> None:
    def acc(request: Any) -> float:
        skewed = request.partition.name == "classes"
        return (
            0.7 + 0.05 * math.log10(request.lr) - (loss_of(request) if skewed else 0.02 * (request.norm.name == "none"))
        )

    found = mechanism("norms", grows(acc), methods=METHODS)
    assert found.claim.verdict == "in part"
    assert "(by partition, iid: open, classes:1: rises with it)" in found.claim.evidence


def test_the_evidence_names_features_that_are_longer_from_the_start() -> None:
    def measure(request: Any) -> Measured:
        return Measured(0.5 + wiggle(request), norm=8, initial_norm=0.5 if request.norm.name == "none" else 8)

    found = mechanism("norms", measure)
    assert "fn's features are 16.0 times as long as none's" in found.claim.evidence


def test_rows_with_several_rates_have_no_best_one_where_nothing_is_tuned() -> None:
    """Each rate is then a column: cells with different rates are no pairs."""
    measure = grows(lambda request: 0.5 + request.lr / 4 + 0.1 * (request.norm.name == "fn"))
    (found,) = syntheses_of(board(probed_runs(measure), tune=()))
    _, rank, norms = (one.claim.evidence for one in found.mechanisms)
    assert rank.endswith(
        "at the best learning rates within one norm the direction is open, rho is not defined (n = 0)."
    )
    assert "at the best ones rho is not defined (n = 0)" in norms
    assert "No cells of fn and none are at their best learning rates." in norms


def test_cells_that_diverged_have_no_gain() -> None:
    found = mechanism("norms", lambda request: None if request.norm.name == "none" else Measured(0.9))
    assert found.claim.verdict == "not run"


# what is read, and what is said


def test_records_of_round_0_are_read_once() -> None:
    collection = probed_runs(lambda request: Measured(0.5 + wiggle(request), norm=2))
    sections, source = board(collection).sections, cast(Any, collection.source)
    before = source.reads
    (found,) = synthesize(sections, collection)
    assert len(collection.runs) == 7 * 7 * 2 * 3 * 2
    assert source.reads - before == 7 * 2 * 2, "norms, partitions and seeds"
    assert len(found.cells) == 294 and len(found.tuned) == 98
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


def test_golden_section() -> None:
    text = markdown_of(board(probed_runs(golden_measure, norms=NORMS[:3])))
    text = text[text.index("## Why") : text.index("## How to read this")]
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(text, encoding="utf-8")
    assert text == GOLDEN.read_text(encoding="utf-8"), "a wanted change is accepted by UPDATE_GOLDEN=1"


def test_json_terminal_and_page_agree() -> None:
    found = board(probed_runs(golden_measure, norms=NORMS[:3]))
    plain = json.loads(json.dumps(to_json(found), allow_nan=False))["why"][0]
    assert [one["verdict"] for one in plain["answers"]] == ["inconclusive", "inconclusive", "in part"]
    assert plain["answers"][1]["findings"][0]["n"] == 63
    assert len(plain["cells"]) == 126 and plain["cells"][0]["lambda_start"] == pytest.approx(1.0)
    page = html_of(found)
    for answer in plain["answers"]:
        assert (
            answer["text"] in markdown_of(found)
            and f"<strong>{answer['question']}: {answer['verdict']}.</strong>" in page
        )
    lines = [str(part) for part in to_terminal(found, 100)]
    assert any(line.startswith("Accuracy follows the rank of the features: inconclusive.") for line in lines)


# figures


def test_the_figure_has_a_row_for_each_partition_and_a_panel_for_each_quantity() -> None:
    collection = probed_runs(golden_measure, norms=NORMS[:3])
    (drawing,) = draw(board(collection), "why")
    axes: Any = drawing.figure.axes
    assert [panel.get_xlabel() for panel in axes[3:]] == [
        "effective rank of the features",
        "feature norm at the end / at the start",
        "lr / (2 / λ_max) at the end",
    ]
    assert axes[0].get_ylabel().startswith("iid") and axes[3].get_ylabel().startswith("classes:1")
    assert [len(marks.get_offsets()) for marks in axes[0].collections] == [21, 21, 21]


def test_many_marks_are_a_picture_in_each_panel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the limit the marks are a picture with a palette, axes and labels stay vectors."""
    monkeypatch.setattr(figures, "_MOST_VECTORS", 10)
    (drawing,) = draw(board(probed_runs(golden_measure, norms=NORMS[:3])), "why")
    save_as(drawing, tmp_path / "why.svg")
    pictures = re.findall(r';base64,([^"]+)"', (tmp_path / "why.svg").read_text())
    assert len(pictures) == 2 * 3
    assert all(Image.open(BytesIO(b64decode(picture))).mode == "P" for picture in pictures)


def test_the_matrix_of_class_accuracies() -> None:
    collection = probed_runs(golden_measure, methods=["fedavg"], norms=NORMS[:2], partitions=["classes:1"])
    (drawing,) = draw(board(collection), "overfit")
    axes: Any = [panel for panel in drawing.figure.axes if panel.images]
    assert [panel.get_title() for panel in axes] == [
        "fedavg, no norm\nmean 90 → 47 %",
        "fedavg, feature norm\nmean 90 → 87 %",
    ]
    assert axes[0].images[0].get_array().tolist() == [[90.0] * 3, [100.0, 20.0, 20.0], [100.0, 20.0, 20.0]]
    assert "after 5 local steps" in drawing.caption


def test_features_over_rounds_of_local_training_and_of_the_baseline() -> None:
    collection = probed_runs(golden_measure, methods=["fedavg"], norms=NORMS[:2])
    drawings = draw(board(collection), "features")
    assert [one.name for one in drawings] == ["features-digits-mlp-fedavg-classes-1-E-10-lr-1"]
    spectrum, share, norms, heads, *_ = drawings[0].figure.axes
    assert [list(line.get_xdata()) for line in spectrum.lines] == 2 * [[1, 2, 3]]
    assert spectrum.lines[0].get_ydata() == pytest.approx([1, 0.1, 0.01])
    assert share.lines[0].get_ydata() == pytest.approx([40, 50, 50])
    assert norms.lines[1].get_ydata() == pytest.approx([1, 1, 1])
    assert len(heads.lines) == 4


def test_features_at_two_rounds_are_points_without_a_line() -> None:
    collection = probed_runs(golden_measure, methods=["fedavg"], norms=NORMS[:2])
    assert isinstance(collection.source, Records)
    for records in collection.source.known.values():
        del records[1]
    (drawing,) = draw(board(collection), "features")
    _, share, norms, heads, *_ = drawing.figure.axes
    assert {line.get_linestyle() for panel in (share, norms, heads) for line in panel.lines} == {"None"}
    assert [line.get_ydata().item() for line in share.lines] == pytest.approx([40, 50, 40, 50])
    assert len(norms.lines) == 4 and len(heads.lines) == 8
    assert "(dashes) mean norm of the others. Pale: before training." in drawing.caption


# theorem 1, figures 2 and 3


def claims(**axes: Any) -> list[Claim]:
    source, runs = Records(), []
    for norm, seed in ((norm, seed) for norm in ("none", "fn") for seed in range(3)):
        for method in ("local-only", "fedavg"):
            request = experiment(method=method, norm=norm, partition="classes:1", seed=seed, probes={"features": 10})
            measured = axes[norm](seed)
            runs.append(finished(request, measured, source))
    (found,) = syntheses_of(board(Collection(tuple(runs), (), source)))  # type: ignore[arg-type]
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


def test_the_sweep_of_the_claims() -> None:
    sweep = load_sweep(str(Path(__file__).parents[3] / "sweeps" / "feature_collapse.yaml"))
    requests = cast(list[Any], sweep.experiments)
    assert len(requests) == 18 and {request.partition.label() for request in requests} == {"classes:1"}
    assert {(request.method.name, request.norm.name) for request in requests} == {
        (method, norm) for method in ("local-only", "fedavg") for norm in ("none", "fn", "ln")
    }
    assert [probe.name for probe in requests[0].probes] == ["features", "overfit"]


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
