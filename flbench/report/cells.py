"""Cells: all seeds of one configuration on one version of the data, with their mean and its interval.

Nothing is dropped: a cell lists its missing, failed and diverged runs. Nothing is mixed: runs on two versions of the
data are never averaged, and seeds that were computed with different numerics are marked.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import Any

from flbench.config import Experiment, Federated, Training
from flbench.literal import line
from flbench.messages import format_scalar
from flbench.metric_specs import METRICS, Record, value_of
from flbench.report.provenance import describe
from flbench.report.runs import Run
from flbench.report.ticks import DIGITS, Tick, axis_value, digits_of, tick
from flbench.store.results import CONTRIBUTED_BY, known_samples

#: Cells with the same unit are one computation: the id of the cell, its round, the version of its data.
Unit = tuple[str, int, str | None]

#: Coverage of every interval that is printed.
CONFIDENCE = 0.95

#: Fewer values than this have no interval: that of two is 9 standard deviations wide.
FEWEST = 3


#: A seed has collapsed if it is below the median of its cell by ten points and by five usual deviations.
COLLAPSE, FAR = 0.1, 5.0


@dataclass(frozen=True)
class Summary:
    """Mean and spread of ``n`` values; ``sd`` is None for one value, ``half_width`` for fewer than ``FEWEST``."""

    n: int
    mean: float
    sd: float | None
    half_width: float | None


def summarize(values: Sequence[float]) -> Summary | None:
    """Return mean, sample sd (ddof 1) and half-width of the 95 % Student-t interval of the mean; None for no values.

    The order of the values does not change a bit of the result.
    """
    n = len(values)
    if n == 0:
        return None
    mean = math.fsum(values) / n
    if n == 1:
        return Summary(1, mean, None, None)
    sd = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1))
    if n < FEWEST:
        return Summary(n, mean, sd, None)
    from scipy.special import stdtrit

    quantile = float(stdtrit(n - 1, (1 + CONFIDENCE) / 2))
    return Summary(n, mean, sd, quantile * sd / math.sqrt(n))


def with_images(found: Summary | None, images: int | None) -> float | None:
    """Return the half-width of a mean over seeds, with the binomial error of the test images that all seeds share."""
    if found is None or found.half_width is None:
        return None
    if not images:
        return found.half_width
    from scipy.special import ndtri

    share = min(max(found.mean, 0), 1)  # imported records may have any number
    of_images = float(ndtri((1 + CONFIDENCE) / 2)) * math.sqrt(share * (1 - share) / images)
    return math.hypot(found.half_width, of_images)


@dataclass(frozen=True)
class Cell:
    """The seeds of one configuration on one version of the data."""

    runs: tuple[Run, ...]  # one a seed
    metric: str  # name of the number that is averaged
    fingerprint: str | None = None  # version of the data
    elsewhere: int = 0  # runs of this configuration on other data
    chosen: str = ""  # how its hyperparameters were chosen, if they were
    at_edge: bool = False  # whether a chosen one is the lowest or the highest that was tried
    lost: bool = False  # whether it stands for settings of which each was dropped or diverged with a seed
    # Significant digits by axis, where four are too few.
    digits: Mapping[str, int] = field(default_factory=dict, compare=False)
    copies: tuple[Cell, ...] = ()  # cells of the same unit whose rows are merged with this one's

    @property
    def experiment(self) -> Experiment:
        """The experiment of the first seed; the others differ in nothing that is shown."""
        return self.runs[0].experiment

    @property
    def training(self) -> Training:
        """The same, for runs that train on a data set."""
        return self.runs[0].training

    @property
    def rounds(self) -> int:
        """The round whose record counts."""
        return self.runs[0].rounds

    @property
    def requested(self) -> int:
        """Number of requested seeds."""
        return len(self.runs) + self.elsewhere

    @property
    def samples(self) -> str | None:
        """The numbers of training and test images: of the data set where its content is known, else as recorded."""
        # All seeds are on the same data: of counts that differ, the smaller one cannot narrow an interval.
        recorded = (run.result.samples for run in self.runs if run.result and run.result.samples)
        counts = known_samples(self.experiment, self.fingerprint) or min(
            recorded, key=lambda both: both[1], default=None
        )
        return None if counts is None else "{}/{}".format(*counts)

    @cached_property
    def unit(self) -> Unit:
        """What is computed: the id of the cell with the plainest method that trains the same, round and data."""
        experiment = self.experiment
        if isinstance(experiment, Federated):
            same = experiment.method.same_as(experiment)  # type: ignore[attr-defined]
            if same != experiment.method:
                experiment = experiment.having(method=same)
        return experiment.cell_id, self.rounds, self.fingerprint

    @cached_property
    def by_seed(self) -> Mapping[int, float]:
        """The metric by seed, finite values only."""
        return self._finite((run, run.record) for run in self.runs)

    @cached_property
    def last_by_seed(self) -> Mapping[int, float]:
        """The metric of the last evaluation by seed, of the seeds whose value is a mean; finite ones only."""
        return self._finite((run, run.last) for run in self.runs if run.last is not None)

    def _finite(self, records: Iterable[tuple[Run, Record | None]]) -> dict[int, float]:
        found = {run.experiment.seed: value_of(record, self.metric) for run, record in records}
        return {seed: value for seed, value in found.items() if value is not None and math.isfinite(value)}

    @property
    def values(self) -> tuple[float, ...]:
        """The values of ``by_seed``."""
        return tuple(self.by_seed.values())

    @cached_property
    def summary(self) -> Summary | None:
        """Mean, sd and interval of ``values``; None where there are none."""
        return summarize(self.values)

    @property
    def images(self) -> int | None:
        """The number of test images of which the metric is a share: as recorded, else that of the data set."""
        if not METRICS[self.metric].is_share:
            return None
        counts = getattr(getattr(self.experiment, "dataset", None), "counts", None)
        if self.samples:
            return int(self.samples.partition("/")[2])
        return counts[1] if counts else None

    @cached_property
    def half_width(self) -> float | None:
        """The half-width of the 95 % interval of the accuracy on images like those of the test set.

        Let x_is be 1 where the model of seed s is right on image i, and p_i its mean over seeds. The mean of n seeds on
        one test set of m images has the variance tau^2 / n + (E[p_i (1 - p_i)] / n + Var[p_i]) / m, where tau^2 is the
        variance over seeds of the accuracy in the population. The sample variance over seeds estimates
        tau^2 + E[p_i (1 - p_i)] / m, so that sd^2 / n has every term but Var[p_i] / m, which all seeds share and no
        number of seeds reduces. It is at most p (1 - p) / m, the variance of a binomial share, which is added: exact
        where all seeds are wrong on the same images, else an upper bound. The half-widths of both parts are added as
        squares, so that the interval is never narrower than that over seeds alone; with Welch's degrees of freedom it
        could be.

        ``acc`` weighs clients equally: in seed s image i has a weight w_is, larger on a client with few images. Each
        seed draws its own partition, so that the mean of w_is over seeds is 1 for every i. The spread of the weights is
        in sd, and the shared variance is still Var[p_i] / m if a seed's errors do not depend on them. Only where the
        data name each client's test images (the partition ``given``) do all seeds share the weights; the added term is
        then too small, and records do not have the sizes of test shards. Numbers that are no share of test images have
        the interval over seeds alone.
        """
        return with_images(self.summary, self.images)

    @cached_property
    def collapsed(self) -> tuple[int, ...]:
        """The seeds far below the others: under the median by ``COLLAPSE`` and by ``FAR`` times the usual deviation.

        The usual deviation is 1.4826 times the median absolute one, which equals the sd of normal values. None where
        there are fewer than ``FEWEST`` values, or where the metric is no accuracy.
        """
        if not METRICS[self.metric].is_share or len(self.values) < FEWEST:
            return ()
        middle = statistics.median(self.values)
        usual = 1.4826 * statistics.median(abs(value - middle) for value in self.values)
        bound = middle - max(COLLAPSE, FAR * usual)
        return tuple(seed for seed, value in self.by_seed.items() if value < bound)

    @cached_property
    def gaps(self) -> Mapping[str, int]:
        """The number of seeds without a value by reason: ``{"diverged": 1, "failed (oom)": 2}``."""
        gaps = Counter(why for run in self.runs if (why := gap_of(run, self.metric)))
        if self.elsewhere:
            gaps["on other data"] = self.elsewhere
        return dict(sorted(gaps.items()))

    @property
    def dropped(self) -> int | None:
        """The round at which the search dropped this setting; None where it did not."""
        return self.runs[0].dropped

    @property
    def complete(self) -> bool:
        """Whether every requested seed has a value."""
        return len(self.values) == self.requested

    @cached_property
    def personal(self) -> bool:
        """Whether parts of the model stay on the clients."""
        return any(run.record is not None and "acc_personal" in run.record for run in self.runs)

    @cached_property
    def numerics(self) -> tuple[str, ...]:
        """The different settings of numerics among the seeds."""
        return tuple(sorted({describe(run.result.numerics) for run in self.runs if run.result}))

    @cached_property
    def contributors(self) -> tuple[str, ...]:
        """Who contributed seeds of this cell; empty where the owners of the results computed all of them."""
        named = {run.result.environment.get(CONTRIBUTED_BY) for run in self.runs if run.result}
        return tuple(sorted(map(str, named - {None})))

    def tick(self, axis: str, without: Sequence[str] = ()) -> Tick:
        """Return the position on an axis; the label omits the settings in ``without``."""
        if axis == "data":
            return Tick((self.fingerprint or "",), f"data {line(self.fingerprint or '?')[:8]}")
        if axis == "rounds":
            return Tick((self.rounds,), format_scalar(self.rounds))
        value = axis_value(self.experiment, axis)
        always = ("variant",) if axis == "method" and value is not None and value.name in self.runs[0].varied else ()
        own = tick(axis, value, tuple(without), self.digits.get(axis, DIGITS), always)
        if axis != "method" or not self.copies:
            return own
        names = (own.label, *(copy.tick(axis, without).label for copy in self.copies))
        return Tick(own.order, " = ".join(names))


def gap_of(run: Run, metric: str) -> str | None:
    """Return why a run has no value; None where it has one."""
    if run.state == "dropped":
        return f"dropped at round {run.dropped}"
    if run.state != "done":
        return line(f"{run.state} ({run.failure})" if run.failure else run.state)
    value = value_of(run.record, metric)
    if value is None:
        return f"without {metric}"
    return None if math.isfinite(value) else f"{metric} not finite"


def cells_of(runs: Sequence[Run], metric: str) -> list[Cell]:
    """Return a cell for each configuration and version of the data.

    An unfinished run has no version of its own: it joins the most frequent one of its configuration, or of all runs.
    """
    used = Counter(run.fingerprint for run in runs if run.fingerprint)
    usual = max(sorted(used), key=lambda name: used[name]) if used else None
    by_cell = grouped(runs, lambda run: run.cell)
    digits = digits_of(members[0].experiment for members in by_cell)
    cells = []
    for members in by_cell:
        here = Counter(run.fingerprint for run in members if run.fingerprint)
        home = max(sorted(here), key=lambda name: here[name]) if here else usual
        by_data: dict[str | None, list[Run]] = {}
        for run in members:
            by_data.setdefault(run.fingerprint or home, []).append(run)
        for fingerprint, same in sorted(by_data.items(), key=lambda item: item[0] or ""):
            cells.append(Cell(tuple(same), metric, fingerprint, elsewhere=len(members) - len(same), digits=digits))
    return cells


def grouped(items: Iterable[Any], key: Callable[[Any], Any]) -> list[list[Any]]:
    """Return items of equal key together, in the order of the keys."""
    return [list(members) for _, members in groupby(sorted(items, key=key), key=key)]


def lines_below(cell: Cell) -> list[str]:
    """Return the lines below a cell's mean: spread and number of seeds, gaps, how its settings were chosen."""
    metric, summary, below = METRICS[cell.metric], cell.summary, []
    if summary:
        spread = "" if summary.sd is None else f"sd {metric.text(summary.sd)}, "
        below.append(f"{spread}n={summary.n}{', no interval' if summary.half_width is None else ''}")
    if not cell.complete:
        below.append(gap_text(cell))
    below += [*code_text(cell), *tail_text(cell)]
    if cell.collapsed:
        worst = metric.text(min(cell.values))
        below.append(f"{len(cell.collapsed)}/{len(cell.values)} collapsed, worst {worst}")
    return [*below, *filter(None, [cell.chosen])]


def code_text(cell: Cell) -> list[str]:
    """Return ``1/3 with other code of a plug-in``: how many results were computed before a plug-in changed."""
    changed = sum(bool(run.changed_plugins) for run in cell.runs)
    return [f"{changed}/{cell.requested} with other code of a plug-in"] if changed else []


def tail_text(cell: Cell) -> list[str]:
    """Return ``last 97.10`` beside a mean over the last evaluations, and how many seeds have too few of them."""
    last = summarize(list(cell.last_by_seed.values()))
    if last is None:
        return []
    short = sum(run.record is not None and run.last is None for run in cell.runs)
    return [f"last {METRICS[cell.metric].text(last.mean)}", *([f"{short} with the last alone"] if short else [])]


def mean_text(cell: Cell) -> str:
    """Return ``97.26 ± 1.05``, mean and half-width of its interval; empty where there is no value."""
    if cell.summary is None:
        return ""
    metric, half_width = METRICS[cell.metric], cell.half_width
    return metric.text(cell.summary.mean) + ("" if half_width is None else f" ± {metric.text(half_width)}")


def gap_text(cell: Cell) -> str:
    """Return ``not run``, ``2/3 diverged``, ``dropped at round 10`` or ``2/3: 1 failed (oom)``."""
    if cell.gaps == {"pending": cell.requested}:
        return "not run"
    if cell.gaps.keys() == {"diverged"}:
        return f"{cell.gaps['diverged']}/{cell.requested} diverged"
    if len(cell.gaps) == 1 and cell.dropped is not None:
        return next(iter(cell.gaps))
    return f"{len(cell.values)}/{cell.requested}: {listing(cell.gaps)}"


def listing(counts: Mapping[str, int]) -> str:
    """Return ``1 diverged, 2 pending``."""
    return ", ".join(f"{count} {what}" for what, count in counts.items())
