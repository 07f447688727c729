"""Execute claimed runs, and record how each attempt ended."""

from __future__ import annotations

import errno
import logging
import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Literal

from flbench.config import plugin_code_of
from flbench.errors import PROCESS_ENDS, UserError, out_of_memory, text_of
from flbench.execution_types import Outcome
from flbench.messages import reason
from flbench.registry import plugin_place
from flbench.store import CANCELLED, Attempt, CancelMark, StopCheck
from flbench.store.secrets import redact
from flbench.worker.engine import Engine
from flbench.worker.machine import environment
from flbench.worker.options import Options

DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

#: Kinds of failure that fewer workers on the machine may prevent.
MEMORY = frozenset({"oom", "cuda_oom"})


def execute_group(
    group: Sequence[Attempt],
    engine: Engine,
    options: Options,
    should_stop: Callable[[], bool],
    stopped_as: Callable[[], str],
) -> set[str]:
    """Execute claimed runs, record how each attempt ended, and return the kinds of their ends."""
    kinds: set[str] = set()
    cancelled = StopCheck(CancelMark(attempt.path).is_set for attempt in group)
    memory = {} if options.memory == "all" else {"memory": options.memory}
    unfinished = {attempt.path: attempt for attempt in group}

    def ended(attempt: Attempt, end: Outcome | Exception) -> None:
        del unfinished[attempt.path]
        # If the worker was not asked to stop, a run of the group was cancelled; the others are resumed at once.
        kinds.add(_end(attempt, end, options, stopped_as if should_stop() else lambda: "interrupted"))

    with ExitStack() as logs:
        try:
            for attempt in group:
                logs.enter_context(_logged(attempt))
                code = plugin_code_of(attempt.experiment.to_json())
                plugins = {"plugins": code} if code else {}
                attempt.describe(environment(options.device) | memory | plugins)
            engine.execute(group, should_stop=lambda: should_stop() or cancelled(), ended=ended)
        except Exception as error:
            for attempt in list(unfinished.values()):
                ended(attempt, error)
        except PROCESS_ENDS as error:  # in a component outside of a method's hooks
            end = RuntimeError(f"it ends the process ({reason(error)})").with_traceback(error.__traceback__)
            for attempt in list(unfinished.values()):
                ended(attempt, end)
        except BaseException:
            # A second Ctrl-C or the interpreter's shutdown is no failure of the runs.
            for attempt in unfinished.values():
                attempt.end("interrupted", "stopped before the end of its round")
            raise
    return kinds


def _end(attempt: Attempt, end: Outcome | Exception, options: Options, stopped_as: Callable[[], str]) -> str:
    """Record how an attempt ended; return the kind of its end."""
    if isinstance(end, UserError):
        # An error with a cause comes from the user's own code: show its traceback.
        attempt.log(f"error: {end}" if end.__cause__ is None else "".join(traceback.format_exception(end)))
        attempt.end("error", str(end), user_fixable=True)
        return "error"
    if isinstance(end, Exception):
        kind = kind_of(end)
        trace = "".join(traceback.format_exception(end))
        traceback.clear_frames(end.__traceback__)  # free the tensors in its frames for the next run
        attempt.log(trace)
        # Do not retry before the user acts: the disk is full, or no worker can have more memory, neither with fewer
        # workers here nor in another job.
        alone_here = options.neighbours == 1
        more_elsewhere = kind == "oom" and options.memory == "usual"
        final = kind == "disk_full" or (kind in MEMORY and alone_here and not more_elsewhere)
        message = traceback.format_exception_only(end)[-1].strip().partition("\n")[0]  # the log has the traceback
        place = plugin_place(end)
        attempt.end(kind, (f"{place}: {message}" if place else message)[:300], user_fixable=final)
        return kind
    if end.status == "stopped" and CancelMark(attempt.path).is_set():
        message = "by `flbench cancel`; the next `flbench sweep` continues it"
        attempt.end(CANCELLED, message, end.round, user_fixable=True)
        return CANCELLED
    if end.status == "stopped":
        why = stopped_as()
        attempt.end(why, round=end.round)
        return why
    if attempt.run.result_for(attempt.request) is None:
        problem = f"the run ended as {end.status!r} and published no result for the requested rounds"
        return _end(attempt, RuntimeError(problem), options, stopped_as)
    attempt.end("ok", round=end.round)
    return "ok"


def kind_of(error: BaseException) -> Literal["error", "oom", "cuda_oom", "disk_full"]:
    """Return the kind of failure of an exception."""
    if memory := out_of_memory(error):
        return memory
    if (isinstance(error, OSError) and error.errno in DISK_FULL) or os.strerror(errno.ENOSPC) in text_of(error):
        return "disk_full"
    return "error"


@contextmanager
def _logged(attempt: Attempt) -> Iterator[None]:
    """Write the library's log messages to the attempt's log."""
    handler = logging.FileHandler(attempt.log_path, delay=True, encoding="utf-8", errors="replace")
    handler.setFormatter(_RedactingFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    with logging_to(handler):
        yield


@contextmanager
def logging_to(handler: logging.Handler) -> Iterator[None]:
    """Send the library's log messages to a handler, too, and close it at the end."""
    logger = logging.getLogger("flbench")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.close()


class _RedactingFormatter(logging.Formatter):
    """Remove the environment's secrets from log messages."""

    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record))
