"""``python -m tests.lists`` writes what README.md and docs/ say of the registries: counts and tables."""

from __future__ import annotations

import re
from pathlib import Path

from flbench.metric_specs import METRICS
from flbench.papers import papers
from flbench.registry import METHODS, NORMS
from flbench.report.paper import figure_kinds
from tests.mutation.engine_mutations import ENGINE_MUTATIONS
from tests.mutation.harness import MUTATIONS

ROOT = Path(__file__).parents[1]
README, REPORT, STATISTICS = ROOT / "README.md", ROOT / "docs" / "report.md", ROOT / "docs" / "statistics.md"
COMPARED = ROOT / "docs" / "compared.md"


def main() -> None:
    for page, text in written().items():
        page.write_text(text, encoding="utf-8")


def written() -> dict[Path, str]:
    """Return the pages as they should be; line breaks within a sentence stay where they are."""
    mutations = [*MUTATIONS, *ENGINE_MUTATIONS]
    equivalent = sum(bool(mutation.equivalent) for mutation in mutations)
    metrics = "".join(f"| `{name}` | {metric.what} |\n" for name, metric in METRICS.items())
    figures = "".join(
        f"| `{name}` | {kind.shows} | {kind.requires} |\n" for name, kind in figure_kinds(papers()).items()
    )
    return {
        README: _filled(
            README,
            (r"kill (\d+) of\s+(\d+) mutations", len(mutations) - equivalent, len(mutations)),
            (r"the other (\w+) are equivalent", ("no", "one", "two", "three", "four", "five")[equivalent]),
            (r"There are (\d+) normalizations and (\d+) methods", len(NORMS.classes), len(METHODS.classes)),
        ),
        COMPARED: _filled(
            COMPARED,
            (r"\| methods \| \[(\d+)\]", len(METHODS.classes)),
            (r"\[an axis: (\d+)\]", len(NORMS.classes)),
        ),
        REPORT: _filled(REPORT, (r"\| kind \| shows \| requires \|\n\| --- \| --- \| --- \|\n((?:\|.*\n)+)", figures)),
        STATISTICS: _filled(STATISTICS, (r"\| metric \| definition \|\n\| --- \| --- \|\n((?:\|.*\n)+)", metrics)),
    }


def _filled(page: Path, *sentences: tuple[str | int, ...]) -> str:
    """Return a page with the groups of each pattern, which occurs once, replaced by values."""
    text = page.read_text(encoding="utf-8")
    for pattern, *values in sentences:
        (found,) = re.finditer(str(pattern), text)
        for group, value in reversed([*enumerate(values, 1)]):
            text = text[: found.start(group)] + str(value) + text[found.end(group) :]
    return text


if __name__ == "__main__":
    main()
