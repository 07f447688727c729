"""How to read a report, and where its numbers come from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flbench.choices import TAIL
from flbench.literal import literal
from flbench.report.blocks import Block, Code, Heading, Items, Paragraph
from flbench.report.board import Leaderboard
from flbench.report.cells import COLLAPSE, FAR
from flbench.report.stats import CONFIDENCE, LEVEL
from flbench.report.wording import TIED, margins_text


def reading(board: Leaderboard) -> Iterator[Block]:
    """Yield what intervals, marks and verdicts mean."""
    confidence, level = f"{100 * CONFIDENCE:g} %", f"{100 * LEVEL:g} %"
    margins = margins_text(section.layout for section in board.sections)
    texts = [
        "Names of methods, norms and heads are those of sweep files: `flbench show norm` says what each one is. `E`: "
        "local steps a round; `classes:2`: two classes a client; `dirichlet:0.1`: uneven shares of classes; `iid`: no "
        "skew.",
        f"± is the half-width of the {confidence} interval of the mean, for other seeds and other test images: "
        "Student's t over seeds, and for accuracies the binomial error of the test set, which all seeds share (of 355 "
        "images one is 0.28 points). Fewer than three seeds have none. `sd`: sample standard deviation over seeds "
        "(ddof 1), `n`: seeds. `1/5 collapsed, worst 41.20`: seeds that are below the cell's median by "
        f"{100 * COLLAPSE:g} points and by {FAR:g} times the usual deviation.",
        "`2/3: 1 failed (oom)`: how many of the requested seeds have a value, and why the others have none; "
        "`1/3 diverged`: how many of them stopped at a number that was not finite; `–`: not requested. Such cells are "
        "never the best.",
        f"{TIED}: a one-sided paired t-test over seeds (all cells of a seed share partition, initial weights and test "
        f"images) shows at {level} that the cell is less than {margins} worse than the best of its column. Of "
        "cells that are worse by that or more, at most 5 of 100 have the mark. A cell without it may be worse or "
        "undecided: the table of differences tells which. p-values there are corrected for the different cells of the "
        "column (Holm) and exploratory; planned comparisons have a table of their own.",
        "**But**, behind the verdict of a planned comparison, names the checks that it does not pass: on the first "
        "page by their names (rising, coarse, window, collapse), in the details by the reasons. *Rising*: the slope "
        "over the second half of the rounds of a cell on either side is above 0, by its interval over seeds; for a "
        "loss *falling*, below 0; *difference rising*, *falling*: that of the difference is not 0. *Coarse*: *within "
        "the grid*: a setting between those that were tried may make up for the difference, or exceed the margin of an "
        "equivalence; *edge of the grid*, *not tuned*: there is no such bound. *Depends on the window*: the verdict is "
        f"another one by the last evaluation, the last {TAIL} or the last {2 * TAIL}. *Not known*: the runs, or the "
        "files that hold them, have too few evaluations or seeds. A cell that is *rising, after 100 rounds* has not "
        "reached its end. *One partition* of all seeds: up to the names of clients.",
        f"**Bold** in the tables of each data set: the best cell of the column and those with {TIED}; under *Values*: "
        "shown to be better than the first row of the column, by a planned comparison of the two cells that passes all "
        "checks.",
    ]
    if any(len(found.columns) > 1 and found.ranked > 1 for found in board.overall):
        texts.append(
            f"`mean of 4`: mean over the four columns, below it its {confidence} interval over seeds and test images, "
            "whose unit is a seed; mean rank: among the rows that are complete in every column, 1 is the best."
        )
    yield Heading(2, "How to read this")
    yield Items((*texts, *(text for one in board.supplements for text in one.reading())))


def provenance(board: Leaderboard) -> Iterator[Block]:
    """Yield what the runs were computed with, and the command that writes the report."""
    made = board.provenance
    lines = [
        f"Runs: {made.requested}, {made.finished} finished",
        f"Seeds: {_numbers_text(made.seeds)}",
        f"Rounds: {_numbers_text(made.rounds)}",
    ]
    for title, counts in made.facts.items():
        parts = [f"{text} ({count} {'run' if count == 1 else 'runs'})" for text, count in counts.items()]
        if counts:
            shared = list(counts.values()) == [made.finished]
            lines.append(f"{title}: {literal(next(iter(counts)) if shared else '; '.join(parts))}")
    lines += [f"Spec: {literal(name)} `{literal(spec_hash)}`" for name, spec_hash in board.options.specs]
    yield Heading(2, "Provenance")
    yield Items(tuple(lines))
    yield Paragraph("Regenerate with:")
    yield Code(board.options.command)


def _numbers_text(numbers: Sequence[int]) -> str:
    """Return ``0, 1, 2``; for more than three in a row ``0 to 19``."""
    if len(numbers) > 3 and list(numbers) == list(range(numbers[0], numbers[0] + len(numbers))):
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(map(str, numbers))
