"""The metrics: the numbers that runs record, their names, how they are shown, and which end is better.

A new metric is an entry of ``METRICS``, which declares everything that other rooms must know of it. A number of the
logits on the test set is a function beside it (``of_logits``); ``metrics.py`` has those that see clients, and studies
measure their own. Other packages and plug-in files add metrics of logits::

    @METRICS.register("macro_f1", "macro F1", "mean over classes of the F1 score on the whole test set")
    def macro_f1(logits_MY, labels_M): ...

Shape suffixes: M test samples, Y classes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

from flbench.discovery import Entries
from flbench.errors import InvalidComponent, UserError, out_of_memory
from flbench.messages import line_in, reason, unknown

if TYPE_CHECKING:
    from torch import Tensor

Record = Mapping[str, Any]

#: A number from the logits (M, Y) and the true classes (M,) of the whole test set; None where it is not defined.
OfLogits = Callable[["Tensor", "Tensor"], "float | None"]

#: A number from the records of a run's evaluations so far, of which ``recall`` has the accuracy of each class.
OfRecords = Callable[[Sequence[Record]], "float | None"]

F = TypeVar("F", bound=Callable[..., Any])

#: What a number is of. ``test images``, ``held-out images``: a mean over all of these images, such as the share that
#: the model classifies correctly. ``model``: another number of the model as it is evaluated. ``run``: a total up to the
#: round.
Of = Literal["test images", "held-out images", "model", "run"]

#: When runs record a number: all trainings; those with held-out data (``val_fraction``); those that fine-tune for
#: evaluations (``finetune``); those without a shared model; studies alone.
Recorded = Literal["always", "with held-out data", "after fine-tuning", "without a shared model", "by studies"]


@dataclass(frozen=True)
class Metric:
    """How a recorded number is shown and which end of it is better.

    Attributes:
        title: its name in tables.
        what: its definition.
        percent: whether it is a fraction, shown in percent.
        lower_is_better: whether small values are good.
        of: what it is a number of. A share of the test images has an interval over seeds and test images, seeds that
            can collapse, and tuning budgets.
        recorded: when runs record it; no sweep of trainings ranks by a number of studies.
        of_logits: its value from the logits (M, Y) and the true classes (M,) of the whole test set; runs without a
            shared model record the mean over their clients' models. It imports torch inside, if at all.
        of_records: its value from the records of all evaluations so far, the present one last.
    """

    title: str
    what: str
    percent: bool = True
    lower_is_better: bool = False
    of: Of = "test images"
    recorded: Recorded = "always"
    of_logits: OfLogits | None = None
    of_records: OfRecords | None = None

    @property
    def is_share(self) -> bool:
        """Whether it is a share of the test images."""
        return self.percent and self.of == "test images"

    @property
    def is_averaged(self) -> bool:
        """Whether rules that average the last evaluations average it; a total is that of the last one."""
        return self.of != "run" and self.recorded != "by studies"

    @property
    def is_comparable(self) -> bool:
        """Whether two machines agree about it: each image weighs little, as in no client's own shard."""
        return self.percent and self.of in ("test images", "held-out images")

    def text(self, value: float) -> str:
        """Return the value as printed: percent with two decimals, other numbers with four digits."""
        return f"{100 * value:.2f}" if self.percent else f"{value:.4g}"

    def change(self, value: float) -> str:
        """Return a difference as printed, with its sign; never ``-0.00``."""
        return f"{100 * value:+z.2f}" if self.percent else f"{value:+z.4g}"

    def best(self, values: Iterable[float]) -> float:
        """Return the best of some values."""
        return min(values) if self.lower_is_better else max(values)

    def reaches(self, value: float, target: float) -> bool:
        """Return whether a value is at least as good as a target."""
        return value <= target if self.lower_is_better else value >= target

    def wrong_units(self, *, margin: float | None, target: float | None) -> Iterator[tuple[str, str]]:
        """Yield the key and the mistake of a margin or target in points or percent, where the metric is a share."""
        if self.percent and margin is not None and margin >= 1:
            yield "margin", f"expected a share below 1, got {margin:g}; one point is 0.01"
        if self.percent and target is not None and target > 1:
            yield "target", f"expected a share of at most 1, got {target:g}; one percent is 0.01"


def _accuracy(logits_MY: Tensor, labels_M: Tensor) -> float | None:
    return int((logits_MY.argmax(-1) == labels_M).sum()) / len(labels_M) if len(labels_M) else None


def _cross_entropy(logits_MY: Tensor, labels_M: Tensor) -> float:
    from torch.nn.functional import cross_entropy

    exact_MY = (logits_MY.cpu() if logits_MY.is_mps else logits_MY).double()  # MPS has no float64
    return float(cross_entropy(exact_MY, labels_M.to(exact_MY.device)))


class Metrics(Entries[Metric]):
    """Every metric by the name under which it is recorded."""

    def register(self, name: str, title: str, what: str, **fields: Any) -> Callable[[F], F]:
        """Register the decorated function as the ``of_logits`` of a metric.

        Args:
            name: what records call it.
            title: as in ``Metric``.
            what: likewise.
            fields: its ``percent`` and ``lower_is_better``; ``of``, which is ``model`` unless given.

        Returns:
            The decorator. It raises InvalidComponent for a name that is taken or no name of a column.
        """
        return self._enter("of_logits", name, title, what, fields)

    def register_of_records(self, name: str, title: str, what: str, **fields: Any) -> Callable[[F], F]:
        """Register the decorated function as the ``of_records`` of a metric; the rest is as for ``register``."""
        return self._enter("of_records", name, title, what, fields)

    def _enter(self, kind: str, name: str, title: str, what: str, fields: dict[str, Any]) -> Callable[[F], F]:
        def enter(function: F) -> F:
            if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or name in _RECORDED_BESIDE:
                raise InvalidComponent(
                    f"metric {name!r}: expected small letters, digits and '_', and none of "
                    f"{', '.join(sorted(_RECORDED_BESIDE))}"
                )
            metric = Metric(title, what, **{"of": "model", **fields, kind: _checked(name, function)})
            if metric.of not in (known := get_args(Of)):
                raise InvalidComponent(f"metric {name!r}: {unknown('of', str(metric.of), known)}")
            self.add(name, metric, function.__module__)
            return function

        return enter


def _checked(name: str, function: Callable[..., Any]) -> Callable[..., float | None]:
    """A metric of another package, whose value must be one that a record can hold; errors name its file and line."""

    @wraps(function)
    def call(*given: Any) -> float | None:
        code = function.__code__
        versions = list(map(_changes, given))
        try:
            value: float | None = function(*given)
        except Exception as error:
            if isinstance(error, UserError) or out_of_memory(error):
                raise
            line = line_in(code.co_filename, error) or code.co_firstlineno
            raise UserError(f"{code.co_filename}:{line}: the metric {name!r} raised {reason(error)}") from error
        problem = ""
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            problem = (
                f"returned a {type(value).__name__}; expected a number (float(...) of a tensor), or None where it is "
                "not defined"
            )
        elif versions != list(map(_changes, given)):
            problem = "changes what it is given in place; make new tensors"
        if problem:
            raise UserError(f"{code.co_filename}:{code.co_firstlineno}: the metric {name!r} {problem}")
        return value

    return call


def _changes(value: Any) -> int:
    """How often a tensor was changed in place; 0 for records, and for tensors of inference mode."""
    return 0 if not hasattr(value, "is_inference") or value.is_inference() else int(value._version)


#: What records hold beside metrics.
_RECORDED_BESIDE = frozenset(
    {"round", "recall", "clients", "clients_personal", "clients_finetuned", "clients_tested", "probes", "train_acc"}
)

METRICS = Metrics("metric", __name__, "flbench.metrics")

_OWN: Mapping[str, Metric] = {
    "acc": Metric("accuracy", "simple mean over clients of the global model's accuracy on the client's own test shard"),
    "acc_weighted": Metric("weighted accuracy", "mean over clients, weighted by the size of their test shards"),
    "acc_global": Metric("global accuracy", "accuracy on the whole test set", of_logits=_accuracy),
    "acc_worst": Metric("worst client's accuracy", "accuracy of the worst client on its own test shard", of="model"),
    "acc_sd": Metric(
        "spread over clients", "standard deviation of accuracy over clients", lower_is_better=True, of="model"
    ),
    "acc_personal": Metric(
        "own-shard accuracy",
        "accuracy of each client's own model on its own test shard",
        of="model",
        recorded="without a shared model",
    ),
    "acc_personal_worst": Metric(
        "worst own-shard accuracy",
        "that of the worst client's own model on its own test shard",
        of="model",
        recorded="without a shared model",
    ),
    "acc_finetuned": Metric(
        "fine-tuned accuracy",
        "accuracy of each client's model on its own test shard, after `finetune` steps on its own training data",
        of="model",
        recorded="after fine-tuning",
    ),
    "acc_finetuned_worst": Metric(
        "worst fine-tuned accuracy", "that of the worst client", of="model", recorded="after fine-tuning"
    ),
    "val_acc": Metric(
        "validation accuracy",
        "accuracy on the held-out slice of the training data",
        of="held-out images",
        recorded="with held-out data",
    ),
    "loss": Metric(
        "test loss",
        "cross-entropy on the test data",
        percent=False,
        lower_is_better=True,
        of="model",
        of_logits=_cross_entropy,
    ),
    "train_loss": Metric(
        "training loss", "cross-entropy on the training data", percent=False, lower_is_better=True, of="model"
    ),
    "bytes_up": Metric("bytes sent", "bytes from clients to the server", percent=False, lower_is_better=True, of="run"),
    "bytes_down": Metric(
        "bytes received", "bytes from the server to clients", percent=False, lower_is_better=True, of="run"
    ),
    "test_acc": Metric("test accuracy", "accuracy of a study's network on the test set", recorded="by studies"),
    "lambda_max": Metric(
        "lambda_max",
        "largest eigenvalue of the Fisher information",
        percent=False,
        lower_is_better=True,
        of="model",
        recorded="by studies",
    ),
    "rank": Metric(
        "effective rank",
        "effective rank r(H) of the last hidden layer",
        percent=False,
        of="model",
        recorded="by studies",
    ),
    "seconds": Metric("seconds", "wall time of training", percent=False, lower_is_better=True, of="run"),
}

for _name, _metric in _OWN.items():
    METRICS.add(_name, _metric, __name__)


def value_of(record: Record | None, metric: str) -> float | None:
    """Return the number in a record; where there is no shared model, accuracy is that on the whole test set."""
    if record is None:
        return None
    name = "acc_global" if metric == "acc" and "acc_personal" in record else metric
    value = record.get(name, record.get(metric))
    return float(value) if isinstance(value, int | float) else None
