"""Ways to start workers that other packages and plug-in files add, beside this machine and SLURM."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from flbench.registry import Component

if TYPE_CHECKING:
    from flbench.config import Experiment
    from flbench.launch import Launcher
    from flbench.store import Store
    from flbench.worker import Options


class Backend(Component, ABC):
    """Base of them; its fields are the keys of a sweep's ``backend`` beside ``kind``."""

    @abstractmethod
    def launcher(
        self, store: Store, plan: str, experiments: Sequence[Experiment], options: Options, workers: int | None
    ) -> Launcher:
        """Return the launcher of a plan's workers.

        Args:
            store: the store, which the workers must find at the same path.
            plan: the plan's folder in it, NAME/HASH.
            experiments: what the plan has.
            options: the settings of each worker, which ``Options.to_argv`` writes for its command line.
            workers: most workers at a time; None: the launcher's choice.
        """
