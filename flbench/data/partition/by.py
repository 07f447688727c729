"""The partition ``by``: a column of the data set names each sample's client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from flbench.data.arrays import Data
from flbench.data.partition.base import Partition, Rows
from flbench.errors import UserError
from flbench.messages import counted
from flbench.registry import PARTITIONS


@PARTITIONS.register("by")
@dataclass(frozen=True)
class By(Partition):
    """Natural clients: all samples with one value of a column, such as a writer, are a client's (``by:column``).

    The data set names the column in its ``groups``: ``dataset: {name: arrays, path: ..., groups: [writer]}``. Clients
    are in the order of their values. With fewer clients than values, those with the most training samples take part (of
    equals, the first), and the others' samples are not used. A client's test samples are those of its value; of a test
    set with other values alone, each client gets as large a part of each class as of the training set.
    """

    source: ClassVar[str] = ""
    shorthand = "column"

    column: Annotated[str, Field(min_length=1)]

    def rows(self, data: Data, clients: int) -> Rows:
        if self.column not in data.group_names:
            known = f"; its groups: {', '.join(data.group_names)}" if data.group_names else ""
            raise UserError(
                f"partition: the data set does not group its samples by {self.column!r}{known}. Name the column in the "
                f"data set: dataset: {{name: ..., path: ..., groups: [{self.column}]}}"
            )
        place, names = list(data.group_names).index(self.column), data.group_names[self.column]
        if clients > len(names):
            raise UserError(
                f"partition: the column {self.column} has {counted(len(names), 'value')} in the training set; use "
                f"at most clients: {len(names)}"
            )
        assert data.train.groups is not None
        assert data.test.groups is not None
        train_N, test_M = (np.asarray(half.groups)[:, place] for half in (data.train, data.test))
        sizes = np.bincount(train_N, minlength=len(names))
        chosen = np.sort(np.argsort(-sizes, kind="stable")[:clients])
        train, test = ([np.flatnonzero(half == value) for value in chosen] for half in (train_N, test_M))
        return Rows(tuple(train), tuple(test) if (test_M >= 0).any() else None)

    def remedy(self) -> str:
        return "lower 'clients' (those with the most samples stay) or 'min_size'"
