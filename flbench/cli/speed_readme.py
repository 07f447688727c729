"""``flbench bench --readme``: measure the speeds in docs/engine.md and README, and write them into these pages."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, cast

import torch

from flbench.bench.contest import TASKS, measure
from flbench.bench.measure import Note
from flbench.bench.peers import FOLDER
from flbench.bench.speed_table import replaced, speed_ratios, speed_tables
from flbench.bench.workloads import WORKLOADS
from flbench.data.datasets import Dataset, load
from flbench.errors import UserError

#: A checkout of the repository, and the measurement in it.
ROOT, MEASUREMENT = FOLDER.parents[1], FOLDER.parent / "speed.json"
#: What is written from the measurement, by the page that has it.
PAGES = {"docs/engine.md": speed_tables, "README.md": speed_ratios}


def measure_tables(data: Path | None, progress: Callable[[], AbstractContextManager[Note]]) -> list[dict[str, Any]]:
    """Return the measurements of the tables, made on one core.

    Raises:
        UserError: this is not a checkout, a page has no place for its speeds, a data set is missing, or a framework
            failed.
    """
    if not FOLDER.is_dir():
        raise UserError(f"--readme runs in a checkout of flbench's repository only: there is no folder {FOLDER}")
    for page in PAGES:
        replaced((ROOT / page).read_text(encoding="utf-8"), "", page)  # before minutes of measuring
    for task in TASKS:
        load(cast(Dataset, WORKLOADS[task.workload].experiment(lr=task.lr).dataset), data)  # which the pages name
    with _one_core(), progress() as note:
        return [measure(task, data, note) for task in TASKS]


def write_tables(measured: dict[str, Any]) -> None:
    """Write a complete measurement, and its speeds into the pages.

    Raises:
        UserError: the measurement lacks a framework or a data set; the pages stay as they are.
    """
    tasks: Sequence[dict[str, Any]] = measured["tasks"]
    lacking = [f"{row['name']} ({row['missing']})" for task in tasks for row in task["rows"] if "missing" in row]
    lacking += [f"the data of {task['workload']}" for task in tasks if task["data"] == "random images"]
    if lacking:
        raise UserError(f"{' and '.join(PAGES)} are unchanged, because the measurement lacks {', '.join(lacking)}")
    MEASUREMENT.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")
    for page, write in PAGES.items():
        path = ROOT / page
        path.write_text(replaced(path.read_text(encoding="utf-8"), write(measured), page), encoding="utf-8")


@contextmanager
def _one_core() -> Iterator[None]:
    """Keep this process and those that it starts on one core, where the system can, and torch on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_setaffinity") else None
    if cores:
        os.sched_setaffinity(0, {max(cores)})
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        if cores:
            os.sched_setaffinity(0, cores)
