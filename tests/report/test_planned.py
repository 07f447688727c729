"""Planned comparisons: interactions, equivalence and verdicts, by hand."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from flbench.errors import UserError
from flbench.report.board import Section
from flbench.report.runs import Collection, Run
from flbench.report.stats import Difference, corrected, equivalence_p, paired
from flbench.report.write.json import to_json
from flbench.sweeps.layout import conditions
from tests.report.stores import draw, experiment, leaderboard_of, markdown_of, pair

#: Values of three seeds by normalization, partition and E. Gains of ln: one class, E 10: 0.20, 0.21, 0.22; one class,
#: E 1: 0.1, 0.1, 0.1; iid, E 10: 0.01, 0, 0.02; iid, E 1: 0.1, 0.11, 0.12. So the interactions are 0.19, 0.21, 0.20 and
#: 0, -0.01, -0.02.
VALUES: Mapping[tuple[str, str, int], Sequence[float]] = {
    ("none", "classes:1", 10): (0.60, 0.61, 0.62),
    ("ln", "classes:1", 10): (0.80, 0.82, 0.84),
    ("none", "classes:1", 1): (0.50, 0.60, 0.70),
    ("ln", "classes:1", 1): (0.60, 0.70, 0.80),
    ("none", "iid", 10): (0.90, 0.91, 0.92),
    ("ln", "iid", 10): (0.91, 0.91, 0.94),
    ("none", "iid", 1): (0.70, 0.71, 0.72),
    ("ln", "iid", 1): (0.80, 0.82, 0.84),
}
GAIN = pair(norm="ln", against="none")
INTERACTION = pair(norm="ln", against="none", between={"partition": ["classes:1", "iid"]})


def board_of(values: Mapping[tuple[str, str, int], Sequence[float]], rounds: int | None = None, **options: Any) -> Any:
    """The leaderboard of some values; with ``rounds``, E times rounds is the same for all."""
    requests = [
        (experiment(norm=norm, partition=partition, E=E, rounds=rounds // E if rounds else 20, seed=seed), acc)
        for (norm, partition, E), accs in values.items()
        for seed, acc in enumerate(accs)
    ]
    runs = tuple(Run(request, request.rounds, "done", record={"acc": acc}) for request, acc in requests)
    return leaderboard_of(Collection(runs), cols=("partition", "local_steps"), **options)


def section_of(values: Mapping[tuple[str, str, int], Sequence[float]], **options: Any) -> Section:
    (section,) = board_of(values, **options).sections
    return section


def test_an_interaction_is_the_gain_in_one_column_minus_that_in_another() -> None:
    found = section_of(VALUES, contrasts=(GAIN, INTERACTION)).planned
    means = {(one.name, one.column): one.contrast.difference.mean for one in found}
    assert means["ln against none", "classes:1, E 10"] == pytest.approx(0.21)
    name = "ln against none, classes:1 minus iid"
    assert means[name, "E 10"] == pytest.approx(0.20) and means[name, "E 1"] == pytest.approx(-0.01)
    (strong,) = (one for one in found if one.column == "E 10")
    # 0.19, 0.21, 0.20: sd 0.01, so the half-width is 4.303 * 0.01 / sqrt 3.
    assert strong.contrast.difference.half_width == pytest.approx(0.02484, abs=1e-5)
    assert len(found) == 6 and all((one.cells, one.missing) == (1, 0) for one in found)
    text = markdown_of(board_of(VALUES, contrasts=(GAIN, INTERACTION)))
    assert "| comparison, classes:1 minus iid |" in text and "| ln against none | -1.00 ± 2.48" in text
    assert "Holm's correction over all of this section that have a test (6)" in text


def test_the_gain_of_the_last_evaluation_stands_beside_that_of_the_mean() -> None:
    requests = [
        (experiment(norm=norm, rounds=100, E=10, seed=seed), mean + 0.01 * seed * seed, last)
        for norm, mean, last in (("none", 0.6, 0.7), ("ln", 0.8, 0.82))
        for seed in range(3)
    ]
    runs = [
        Run(request, 100, "done", record={"acc": mean}, last={"acc": last}, since=60)
        for request, mean, last in requests
    ]
    board = leaderboard_of(Collection(tuple(runs)), contrasts=(GAIN,), select_by="val-tail")
    (section,) = board.sections
    (one,) = section.planned
    assert one.contrast.difference.mean == pytest.approx(0.2) and one.last is not None
    assert (one.last.n, one.last.mean, one.last.half_width) == (3, pytest.approx(0.12), 0.0)
    text = markdown_of(board)
    assert "+20.00 ± 0.00<br><sub>open</sub><br><sub>last +12.00 ± 0.00</sub>" in text
    assert "last: the same difference in the last evaluation alone" in text
    assert "mean of the last 5 evaluations (rounds 60 to 100)" in text
    assert "<sub>last 70.00</sub>" in text
    assert to_json(board)["planned"][0]["last"] == {"mean": one.last.mean, "ci_half_width": 0.0, "n": 3}


def test_interactions_pair_the_cells_of_one_method() -> None:
    requests = [
        (experiment(norm=norm, partition=partition, method=method, seed=seed), acc + 0.01 * seed * seed)
        for method, norm, partition, acc in [
            ("fedavg", "none", "iid", 0.5),
            ("fedavg", "ln", "iid", 0.6),
            ("fedavg", "none", "classes:1", 0.3),
            ("fedavg", "ln", "classes:1", 0.6),
            ("scaffold", "none", "classes:1", 0.1),
            ("scaffold", "ln", "classes:1", 0.9),
        ]
        for seed in range(3)
    ]
    runs = tuple(Run(request, request.rounds, "done", record={"acc": acc}) for request, acc in requests)
    (section,) = leaderboard_of(Collection(runs), contrasts=(INTERACTION,)).sections
    (one,) = section.planned
    assert one.contrast.difference.mean == pytest.approx(0.2), "scaffold has no run with iid data"
    among = [dataclasses.replace(GAIN, among=conditions([f"method={method}"])) for method in ("fedavg", "scaffold")]
    (section,) = leaderboard_of(Collection(runs), contrasts=(GAIN, *among)).sections
    found = {(one.name, one.column): (one.contrast.difference.mean, one.cells) for one in section.planned}
    assert found["ln against none", "classes:1"] == (pytest.approx(0.55), 2)
    assert found["ln against none with fedavg", "classes:1"] == (pytest.approx(0.3), 1)
    assert found["ln against none with scaffold", "classes:1"] == (pytest.approx(0.8), 1)
    assert len(found) == 5, "scaffold has no run with iid data"


def test_the_test_of_equivalence_is_that_of_the_nearer_bound() -> None:
    # 0.2, 0.3, 0.4 points: mean 0.3, standard error 0.1 / sqrt 3; to the bound of 1 point t = 0.7 / 0.0577 = 12.12.
    # The t-distribution with 2 degrees of freedom has P(T > t) = 1/2 - t / (2 sqrt(t^2 + 2)).
    found = paired({0: 0.002, 1: 0.003, 2: 0.004}, {0: 0.0, 1: 0.0, 2: 0.0})
    assert found is not None
    t = 0.7 / (0.1 / 3**0.5)
    assert equivalence_p(found, 0.01) == pytest.approx(0.5 - t / (2 * (t**2 + 2) ** 0.5))
    assert equivalence_p(found, 0.003) == pytest.approx(0.5), "a mean on the bound"
    assert equivalence_p(Difference(3, 0.0, 0.0, 1.0), 0.01) == 1 / 8, "no spread: each seed was on either side"
    assert equivalence_p(Difference(3, 0.02, 0.0, 0.25), 0.01) == 1.0
    assert equivalence_p(Difference(2, 0.0, None, 1.0), 0.01) is None


@pytest.mark.parametrize(
    ("mean", "half_width", "verdict"),
    [
        (0.05, 0.01, "more"),
        (-0.05, 0.01, "less"),
        (0.0, 0.005, "equivalent"),
        (0.004, 0.002, "more, equivalent"),
        (0.01, 0.03, "open"),
    ],
)
def test_verdicts(mean: float, half_width: float, verdict: str) -> None:
    p = 0.0001 if abs(mean) > half_width else 0.8
    assert corrected({0: Difference(10, mean, half_width, p)}, 0.01)[0].verdict == verdict


def test_a_family_is_corrected_for_its_size() -> None:
    """Of three with p 0.02 none is significant: 3 * 0.02 = 0.06; nor is any of three with p 0.02 of equivalence."""
    one = Difference(10, 0.02, 0.0198, 0.02)
    assert [found.verdict for found in corrected(dict.fromkeys(range(3), one), 0.01).values()] == ["open"] * 3
    assert corrected({0: one}, 0.01)[0].verdict == "more"


def test_json_has_the_verdict_and_the_interaction() -> None:
    (found, *_) = to_json(board_of(VALUES, contrasts=(INTERACTION,)))["planned"]
    assert found["between"] == "classes:1 minus iid" and found["verdict"] == "open"
    assert found["p_holm"] >= found["p"] and 0 < found["p_equivalence_holm"] <= 1


def test_the_overview_has_a_row_of_panels_a_section_and_a_column_a_reference() -> None:
    """Only ``none`` is what both sections compare with, and the second one has no interaction."""
    columns = (('partition="classes:1"',),)
    both = board_of(VALUES, contrasts=(GAIN, INTERACTION), headline=columns)
    requests = [
        (experiment(norm=norm, partition="classes:1", dataset="mnist", seed=seed), acc + 0.01 * seed * (norm == "ln"))
        for norm, acc in (("none", 0.5), ("scale", 0.6), ("ln", 0.7))
        for seed in range(3)
    ]
    runs = tuple(Run(request, request.rounds, "done", record={"acc": acc}) for request, acc in requests)
    contrasts = (GAIN, pair(norm="scale", against="none"), pair(norm="ln", against="scale"))
    (other,) = leaderboard_of(Collection(runs), contrasts=contrasts).sections
    (drawing,) = draw(dataclasses.replace(both, sections=(*both.sections, other)), "overview")
    assert drawing.name == "overview" and drawing.place is None
    gains, interactions, others = drawing.figure.axes
    titles = [panel.get_title(loc="left") for panel in drawing.figure.axes]
    assert titles == ["digits", "digits, classes:1 minus iid", "mnist"]
    assert [label.get_text() for label in gains.get_yticklabels()] == ["classes:1, E 1", "classes:1, E 10"]
    points = [
        [line.get_xdata()[0] for line in panel.lines if len(line.get_xdata()) == 1] for panel in drawing.figure.axes
    ]
    assert points == [
        [pytest.approx(10.0), pytest.approx(21.0)],
        [pytest.approx(-1.0), pytest.approx(20.0)],
        [pytest.approx(21.0), pytest.approx(10.0)],
    ]
    assert others.get_xlabel() == "against no norm" and not interactions.get_xlabel()
    assert draw(both, "overview") == [], "one section is drawn as gains"


def test_the_phase_diagram_names_columns_by_local_steps_alone() -> None:
    """Rounds follow from E, so that they are no axis; the section says which belong together."""
    values = {
        (norm, f"classes:{classes}", E): [0.5 + 0.01 * (norm == "ln") * classes * seed * E for seed in range(3)]
        for norm in ("none", "ln")
        for classes in (1, 2, 3)
        for E in (1, 2, 4)
    }
    board = board_of(values, rounds=40, contrasts=(GAIN,))
    (section,) = board.sections
    assert section.tables[0].col_axes == ("local_steps",) and section.tables[0].place == "classes:1"
    assert section.constants.endswith("rounds 40 with E 1, 20 with E 2, 10 with E 4")
    (drawing,) = draw(board, "phase")
    texts = [text.get_text() for text in drawing.figure.axes[0].texts]
    # Seeds gain 0, 1 and 2 points times classes and E; their sd is so large that nothing is shown.
    assert texts == [f"{1.0 * classes * E:+.1f}" for classes in (1, 2, 3) for E in (1, 2, 4)]
    assert drawing.name == "phase-digits-mlp-against-none"
    assert draw(board, "gains") == [], "no gain is drawn twice"
    assert draw(board_of(VALUES, contrasts=(GAIN,)), "phase") == [], "two by two columns are a table"


def test_a_compared_number_has_the_name_of_its_field() -> None:
    method = {"name": "feddecorr", "coefficient": 0}
    requests = [
        experiment(method=method | {"coefficient": dose}, seed=seed)
        for dose, seed in itertools.product((0, 1), range(3))
    ]
    runs = tuple(Run(one, one.rounds, "done", record={"acc": 0.5 + 0.01 * one.seed}) for one in requests)
    options = {"rows": ("method.coefficient",), "contrasts": (pair(**{"method.coefficient": 1, "against": 0}),)}
    (section,) = leaderboard_of(Collection(runs), **options).sections
    assert [one.name for one in section.planned] == ["coefficient 1 against 0"]
    assert [one.reference for one in section.planned] == ["coefficient 0"], "the title of its figure"


def norms(*values: Any) -> Collection:
    """Three seeds of each norm; the accuracy is 0.5, plus a tenth for each norm before it, plus a hundredth a seed."""
    requests = [(experiment(norm=norm, seed=seed), i, seed) for i, norm in enumerate(values) for seed in range(3)]
    return Collection(
        tuple(
            Run(one, one.rounds, "done", record={"acc": 0.5 + 0.1 * i + 0.01 * seed * (i + 1)})
            for one, i, seed in requests
        )
    )


def test_a_name_means_the_component_with_its_defaults() -> None:
    """Not the mean over all its settings, and not the last of them."""
    runs = norms("none", "scale", {"name": "scale", "factor": 3}, "ln")
    pairs = (pair(norm="scale", against="none"), pair(norm="ln", against="scale"))
    (section,) = leaderboard_of(runs, contrasts=pairs).sections
    found = {one.name: (one.contrast.difference.mean, one.cells) for one in section.planned}
    assert found == {"scale against none": (pytest.approx(0.11), 1), "ln against scale": (pytest.approx(0.22), 1)}
    (section,) = leaderboard_of(runs, contrasts=(pair(norm="ln", against="scale(factor=3)"),)).sections
    (one,) = section.planned
    assert one.contrast.difference.mean == pytest.approx(0.11), "a label means itself"


def test_a_name_that_two_settings_match_cannot_be_the_reference() -> None:
    runs = norms({"name": "scale", "factor": 3}, {"name": "scale", "factor": 30}, "ln")
    (section,) = leaderboard_of(runs, contrasts=(pair(norm="scale", against="ln"),)).sections
    assert [one.cells for one in section.planned] == [2], "the mean over both"
    with pytest.raises(UserError, match=r"against norm: scale: scale\(factor=3\) and scale\(factor=30\) both match"):
        leaderboard_of(runs, contrasts=(pair(norm="ln", against="scale"),))
