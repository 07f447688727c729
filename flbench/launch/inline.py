"""One worker as a thread of this process: easy to debug, and it leaves no process behind."""

from __future__ import annotations

import os
import threading
import traceback
from collections.abc import Callable, Iterable

from flbench.config import Experiment
from flbench.errors import StoreUnusable, UserError
from flbench.launch import record_user_kill
from flbench.store import Heartbeat, Lease, Plan, Store, read_search
from flbench.worker import Engine, Options, load_engine, work


class InlineLauncher:
    """Run one worker in a thread, so that the main thread can watch its progress and handle Ctrl-C."""

    def __init__(
        self,
        store: Store,
        plan: str,
        experiments: Iterable[Experiment],
        options: Options,
        load: Callable[[Options], Engine] = load_engine,
    ) -> None:
        self.slots, self.start_seconds, self.delayed = 1, 0.0, ""
        self._store, self._plan, self._options, self._load = store, plan, options, load
        self._runs = Plan.of(experiments, store.sweeps / plan)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._lease = Lease.here()
        self._crash_log = ""
        self._store_error: StoreUnusable | OSError | None = None

    def start(self, count: int, out_of_memory: int = 0) -> int:
        """Start the worker unless it is alive; raises the error of the store that ended the previous one."""
        if self._store_error is not None:
            raise self._store_error
        if not count or self.alive():
            return 0
        self._thread = threading.Thread(target=self._work, name="flbench-worker", daemon=True)
        self._thread.start()
        return 1

    def alive(self) -> int:
        return int(self._thread is not None and self._thread.is_alive())

    def tokens(self) -> set[str]:
        return {self._lease.token}

    def drain(self) -> None:
        self._stop.set()

    def kill(self) -> None:
        """End this process, since a thread cannot be killed; record first that the user asked for it."""
        record_user_kill(self._store, self._lease.token)
        os._exit(130)

    def crash_log(self) -> str:
        return self._crash_log

    def _work(self) -> None:
        try:
            with Heartbeat(self._store.workers, self._lease, self._plan):
                work(
                    self._store,
                    self._runs,
                    self._lease,
                    self._options,
                    should_stop=self._stop.is_set,
                    load=self._load,
                    search=read_search(self._store.sweeps / self._plan),
                )
        except (StoreUnusable, OSError) as error:
            self._store_error = error
        except UserError as error:
            self._crash_log = str(error)
        except Exception:
            self._crash_log = traceback.format_exc()
