"""What an evaluation records, from logits on the test set: of clients and classes, and the metrics ``of_logits``.

Every accuracy is a fraction in [0, 1]. Shape suffixes: K models, M test samples, Y classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from flbench.metric_specs import METRICS
from flbench.sums import sum_in_order

Record = dict[str, Any]


def shared_model(logits_MY: Tensor, labels_M: Tensor, shards: Sequence[Tensor]) -> Record:
    """Return metrics of one model that all clients share.

    Args:
        logits_MY: on the whole test set.
        labels_M: true classes.
        shards: each client's rows of the test set; may be empty.

    Returns:
        ``acc``, the label-skew paper's number: the simple mean over clients of the accuracy on the client's own shard,
        clients without test data left out (``clients_tested`` remain); ``acc_weighted`` by shard size; ``acc_worst``,
        ``acc_sd`` (ddof 0: these are all the clients there are) and ``clients``, one number a client or None;
        ``recall`` and the metrics ``of_logits`` on the whole test set.

    >>> logits = torch.tensor([[2.0, 0.0], [0.0, 2.0], [2.0, 0.0], [2.0, 0.0]])
    >>> labels = torch.tensor([0, 1, 1, 0])
    >>> record = shared_model(logits, labels, shards=[torch.tensor([0, 1]), torch.tensor([2])])
    >>> record["clients"], record["acc"], record["acc_weighted"], record["acc_global"]
    ([1.0, 0.0], 0.5, 0.6666666666666666, 0.75)
    """
    correct_M = logits_MY.argmax(-1) == labels_M
    own = [_mean(correct_M[rows]) for rows in shards]
    sizes = [len(rows) for rows in shards]
    return {**_over_clients(own, sizes), **_on_whole_set(logits_MY, labels_M)}


def personal_models(logits_KMY: Tensor, labels_M: Tensor, shards: Sequence[Tensor]) -> Record:
    """Return metrics of clients with personal parameters, where there is no shared model.

    ``acc``, which ranks the method, is ``acc_global``: the mean over clients of the accuracy of the client's model on
    the whole test set. Accuracy on the own shard is ``acc_personal``: with one class per client, a constant answer
    reaches 1.
    """
    correct_KM = logits_KMY.argmax(-1) == labels_M
    whole = [_on_whole_set(logits_MY, labels_M) for logits_MY in logits_KMY]
    recalls = [one.pop("recall") for one in whole]
    means = {name: _mean_of([one[name] for one in whole]) for name in whole[0]}
    own = [_mean(correct[rows]) for correct, rows in zip(correct_KM, shards, strict=True)]
    tested = [value for value in own if value is not None]
    return {
        **_over_clients([one["acc_global"] for one in whole], [1] * len(whole)),
        "acc_global": means.pop("acc_global"),
        "acc_personal": _mean_of(own),
        "acc_personal_worst": min(tested, default=None),
        "clients_personal": own,
        **means,
        "recall": [_mean_of(of_class) for of_class in zip(*recalls, strict=True)],
    }


def finetuned_models(own: Sequence[float | None]) -> Record:
    """Return metrics of the clients' models after fine-tuning, from the accuracy of each on its own shard.

    >>> finetuned_models([0.5, None, 1.0])
    {'acc_finetuned': 0.75, 'acc_finetuned_worst': 0.5, 'clients_finetuned': [0.5, None, 1.0]}
    """
    worst = min((value for value in own if value is not None), default=None)
    return {"acc_finetuned": _mean_of(own), "acc_finetuned_worst": worst, "clients_finetuned": list(own)}


def accuracy(logits_MY: Tensor, labels_M: Tensor) -> float | None:
    """Return the share of the samples that are classified correctly; None without samples."""
    return _mean(logits_MY.argmax(-1) == labels_M)


def whole_set(logits_MY: Tensor, labels_M: Tensor) -> Record:
    """Return metrics of a model without clients: ``acc`` equals ``acc_global``.

    >>> record = whole_set(torch.tensor([[2.0, 0.0], [2.0, 0.0]]), torch.tensor([0, 1]))
    >>> record["acc"], record["recall"]
    (0.5, [1.0, 0.0])
    """
    record = _on_whole_set(logits_MY, labels_M)
    return {"acc": record["acc_global"], **record}


def over_records(records: Sequence[Record]) -> Record:
    """Return the metrics ``of_records``, from the records so far, the present one last."""
    return {name: of(records) for name, metric in METRICS.items() if (of := metric.of_records)}


def _over_clients(accuracies: list[float | None], sizes: list[int]) -> Record:
    pairs = [(accuracy, size) for accuracy, size in zip(accuracies, sizes, strict=True) if accuracy is not None]
    tested = [accuracy for accuracy, _ in pairs]
    mean = _mean_of(tested)
    return {
        "acc": mean,
        # exact: whole numbers
        "acc_weighted": sum_in_order(a * size for a, size in pairs) / sum(size for _, size in pairs) if pairs else None,
        "acc_worst": min(tested, default=None),
        "acc_sd": (sum_in_order((a - mean) ** 2 for a in tested) / len(tested)) ** 0.5 if mean is not None else None,
        "clients_tested": len(tested),
        "clients": accuracies,
    }


def _on_whole_set(logits_MY: Tensor, labels_M: Tensor) -> Record:
    classes = logits_MY.shape[-1]
    count_Y = torch.bincount(labels_M, minlength=classes)
    hits_Y = torch.bincount(labels_M[logits_MY.argmax(-1) == labels_M], minlength=classes)
    pairs = zip(hits_Y.tolist(), count_Y.tolist(), strict=True)
    metrics = {name: of(logits_MY, labels_M) for name, metric in METRICS.items() if (of := metric.of_logits)}
    return {**metrics, "recall": [hits / count if count else None for hits, count in pairs]}


def _mean(correct: Tensor) -> float | None:
    return int(correct.sum()) / len(correct) if len(correct) else None


def _mean_of(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum_in_order(known) / len(known) if known else None
