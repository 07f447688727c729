"""Planned comparisons: interactions, equivalence and verdicts, by hand."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest

from flbench.errors import UserError
from flbench.report.board import Leaderboard
from flbench.report.runs import Run
from flbench.report.stats import Difference, corrected, equivalence_p, paired
from flbench.report.write.json import to_json
from flbench.sweeps.layout import Pair, conditions
from tests.report.stores import board_of, draw, markdown_of, pair, run_of

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


def planned_board(
    values: Mapping[tuple[str, str, int], Sequence[float]], rounds: int | None = None, **options: Any
) -> Leaderboard:
    """The leaderboard of some values; with ``rounds``, E times rounds is the same for all."""
    runs = [
        run_of(acc, norm=norm, partition=partition, E=E, rounds=rounds // E if rounds else 20, seed=seed)
        for (norm, partition, E), accs in values.items()
        for seed, acc in enumerate(accs)
    ]
    return board_of(runs, cols=("partition", "local_steps"), **options)


def planned_of(runs: Iterable[Run], *contrasts: Pair, **options: Any) -> dict[tuple[str, str], Any]:
    """The planned comparisons of runs on one data set, by name and column."""
    (section,) = board_of(runs, contrasts=contrasts, **options).sections
    return {(one.name, one.column): one for one in section.planned}


def test_an_interaction_is_the_gain_in_one_column_minus_that_in_another() -> None:
    found = planned_board(VALUES, contrasts=(GAIN, INTERACTION)).sections[0].planned
    means = {(one.name, one.column): one.contrast.difference.mean for one in found}
    assert means["ln against none", "classes:1, E 10"] == pytest.approx(0.21)
    name = "ln against none, classes:1 minus iid"
    assert means[name, "E 10"] == pytest.approx(0.20) and means[name, "E 1"] == pytest.approx(-0.01)
    (strong,) = (one for one in found if one.column == "E 10")
    # 0.19, 0.21, 0.20: sd 0.01, so the half-width is 4.303 * 0.01 / sqrt 3.
    assert strong.contrast.difference.half_width == pytest.approx(0.02484, abs=1e-5)
    assert len(found) == 6 and all((one.cells, one.missing) == (1, 0) for one in found)
    plain = to_json(planned_board(VALUES, contrasts=(INTERACTION,)))["planned"][0]
    assert plain["between"] == "classes:1 minus iid" and plain["verdict"] == "open"
    assert plain["p_holm"] >= plain["p"] and 0 < plain["p_equivalence_holm"] <= 1


def test_the_gain_of_the_last_evaluation_stands_beside_that_of_the_mean() -> None:
    runs = [
        dataclasses.replace(
            run_of(mean + 0.01 * seed * seed, norm=norm, rounds=100, seed=seed), last={"acc": last}, since=60
        )
        for norm, mean, last in (("none", 0.6, 0.7), ("ln", 0.8, 0.82))
        for seed in range(3)
    ]
    board = board_of(runs, contrasts=(GAIN,), select_by="val-tail")
    (one,) = board.sections[0].planned
    assert one.contrast.difference.mean == pytest.approx(0.2) and one.last is not None
    assert (one.last.n, one.last.mean, one.last.half_width) == (3, pytest.approx(0.12), 0.0)
    text = markdown_of(board)
    assert "+20.00 ± 0.00<br><sub>open</sub><br><sub>last +12.00 ± 0.00</sub>" in text
    assert "mean of the last 5 evaluations (rounds 60 to 100)" in text and "<sub>last 70.00</sub>" in text
    assert to_json(board)["planned"][0]["last"] == {"mean": one.last.mean, "ci_half_width": 0.0, "n": 3}
    (alone, *_) = planned_board(VALUES, contrasts=(GAIN,)).sections[0].planned
    assert alone.last is None, "no mean over evaluations"


def test_differences_are_averaged_over_the_methods_that_have_both_cells() -> None:
    accs = {
        ("fedavg", "none", "iid"): 0.5,
        ("fedavg", "ln", "iid"): 0.6,
        ("fedavg", "none", "classes:1"): 0.3,
        ("fedavg", "ln", "classes:1"): 0.6,
        ("scaffold", "none", "classes:1"): 0.1,
        ("scaffold", "ln", "classes:1"): 0.9,
    }
    runs = [
        run_of(acc + 0.01 * seed * seed, method=method, norm=norm, partition=partition, seed=seed)
        for (method, norm, partition), acc in accs.items()
        for seed in range(3)
    ]
    among = [dataclasses.replace(GAIN, among=conditions([f"method={method}"])) for method in ("fedavg", "scaffold")]
    found = planned_of(runs, GAIN, *among, INTERACTION)
    assert {at: (one.contrast.difference.mean, one.cells) for at, one in found.items()} == {
        ("ln against none", "iid"): (pytest.approx(0.1), 1),
        ("ln against none", "classes:1"): (pytest.approx(0.55), 2),
        ("ln against none with fedavg", "iid"): (pytest.approx(0.1), 1),
        ("ln against none with fedavg", "classes:1"): (pytest.approx(0.3), 1),
        ("ln against none with scaffold", "classes:1"): (pytest.approx(0.8), 1),
        ("ln against none, classes:1 minus iid", ""): (pytest.approx(0.2), 1),
    }, "scaffold has no run with iid data"


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


def points_of(panel: Any) -> list[float]:
    return [line.get_xdata()[0] for line in panel.lines if len(line.get_xdata()) == 1]


def test_the_overview_has_a_row_of_panels_a_section_and_a_column_a_reference() -> None:
    """Only ``none`` is what both sections compare with, and the second one has no interaction."""
    both = planned_board(VALUES, contrasts=(GAIN, INTERACTION), headline=(('partition="classes:1"',),))
    runs = [
        run_of(acc + 0.01 * seed * (norm == "ln"), norm=norm, partition="classes:1", dataset="mnist", seed=seed)
        for norm, acc in (("none", 0.5), ("scale", 0.6), ("ln", 0.7))
        for seed in range(3)
    ]
    contrasts = (GAIN, pair(norm="scale", against="none"), pair(norm="ln", against="scale"))
    (other,) = board_of(runs, contrasts=contrasts).sections
    (drawing,) = draw(dataclasses.replace(both, sections=(*both.sections, other)), "overview")
    panels = drawing.figure.axes
    titles = ["digits, MLP, 20 rounds", "digits, MLP, 20 rounds, one class minus no skew", "MNIST, MLP, 20 rounds"]
    assert [panel.get_title(loc="left") for panel in panels] == titles
    expected = [[10.0, 21.0], [-1.0, 20.0], [21.0, 10.0]]
    assert list(map(points_of, panels)) == [pytest.approx(points) for points in expected]
    above = "against no norm\n"  # with a line for the title of the first row
    assert [panel.get_title(loc="right") for panel in panels] == [above, "", ""]
    assert draw(both, "overview") == [], "one section is drawn as gains"
    (gains,) = draw(both, "gains")
    assert [len(points_of(panel)) for panel in gains.figure.axes] == [4, 2], "a panel for the interaction"
    (legend,) = gains.figure.legends
    names = ["filled: shown", "hollow: not shown", "shown to be equivalent", "within 1 point"]
    assert [text.get_text() for text in legend.get_texts()][-4:] == names


def test_the_title_of_gains_names_what_they_are_against_in_words() -> None:
    runs = [
        run_of(0.5 + 0.01 * seed * (norm == "ln"), norm=norm, partition=partition, lr=0.1, seed=seed)
        for norm in ("none", "ln")
        for partition in ("classes:1", "dirichlet:0.1")
        for seed in range(3)
    ]
    among = {"partition": ["classes:1", "dirichlet:0.1"], "lr": 0.1, "method": "fedavg"}
    one = pair(norm="ln", against="none", **{"if": among})
    (drawing,) = draw(board_of(runs, contrasts=(one,)), "gains")
    title = "digits, MLP: planned comparisons against no norm with one class or Dirichlet(0.1), lr 0.1, fedavg"
    assert drawing.caption.startswith(f"{title}, paired by seed")


def test_the_phase_diagram_names_columns_by_local_steps_alone() -> None:
    """Rounds follow from E, so that they are no axis; the section says which belong together."""
    values = {
        (norm, f"classes:{classes}", E): [0.5 + 0.01 * (norm == "ln") * classes * seed * E for seed in range(3)]
        for norm in ("none", "ln")
        for classes in (1, 2, 3)
        for E in (1, 2, 4)
    }
    board = planned_board(values, rounds=40, contrasts=(GAIN,))
    (section,) = board.sections
    assert section.tables[0].col_axes == ("local_steps",) and section.tables[0].place == "classes:1"
    assert section.constants.endswith("rounds 40 with E 1, 20 with E 2, 10 with E 4")
    (drawing,) = draw(board, "phase")
    texts = [text.get_text() for text in drawing.figure.axes[0].texts]
    # Seeds gain 0, 1 and 2 points times classes and E; their sd is so large that nothing is shown.
    assert texts == [f"{1.0 * classes * E:+.1f}" for classes in (1, 2, 3) for E in (1, 2, 4)]
    assert drawing.name == "phase-digits-mlp-against-none"
    assert drawing.figure.get_supylabel() == "classes a client"
    assert draw(board, "gains") == [], "no gain is drawn twice"
    assert draw(planned_board(VALUES, contrasts=(GAIN,)), "phase") == [], "two by two columns are a table"


def test_a_compared_number_has_the_name_of_its_field() -> None:
    runs = [
        run_of(0.5 + 0.01 * seed, method={"name": "feddecorr", "coefficient": dose}, seed=seed)
        for dose in (0, 1)
        for seed in range(3)
    ]
    found = planned_of(runs, pair(**{"method.coefficient": 1, "against": 0}), rows=("method.coefficient",))
    assert [one.name for one in found.values()] == ["coefficient 1 against 0"]
    assert [one.reference for one in found.values()] == ["coefficient 0"], "the title of its figure"


def norms(*values: Any) -> list[Run]:
    """Three seeds of each norm; the accuracy is 0.5, plus a tenth for each norm before it, plus a hundredth a seed."""
    return [
        run_of(0.5 + 0.1 * i + 0.01 * seed * (i + 1), norm=norm, seed=seed)
        for i, norm in enumerate(values)
        for seed in range(3)
    ]


def test_a_name_means_the_component_with_its_defaults() -> None:
    """Not the mean over all its settings, and not the last of them."""
    runs = norms("none", "scale", {"name": "scale", "factor": 3}, "ln")
    found = planned_of(runs, pair(norm="scale", against="none"), pair(norm="ln", against="scale"))
    assert {name: (one.contrast.difference.mean, one.cells) for (name, _), one in found.items()} == {
        "scale against none": (pytest.approx(0.11), 1),
        "ln against scale": (pytest.approx(0.22), 1),
    }
    (one,) = planned_of(runs, pair(norm="ln", against="scale(factor=3)")).values()
    assert one.contrast.difference.mean == pytest.approx(0.11), "a label means itself"


def test_a_name_that_two_settings_match_cannot_be_the_reference() -> None:
    runs = norms({"name": "scale", "factor": 3}, {"name": "scale", "factor": 30}, "ln")
    (one,) = planned_of(runs, pair(norm="scale", against="ln")).values()
    assert one.cells == 2, "the mean over both"
    with pytest.raises(UserError, match=r"against norm: scale: scale\(factor=3\) and scale\(factor=30\) both match"):
        planned_of(runs, pair(norm="ln", against="scale"))
