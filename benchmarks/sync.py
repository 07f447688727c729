"""Time ``flbench sync`` of many small runs to a tracker: to a stand-in for W&B's server on this machine, or to files.

python -m benchmarks.sync [runs] [options of flbench sync]
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.processes import machine_line
from tests.tracking.plans import KEY, SPEC, environment, flbench, planned
from tests.tracking.server import serving

#: Prints how long the steps of the sync take.
STEPS = """
import atexit, time
from collections import Counter
import flbench.tracking.mirror as mirror, flbench.tracking.sync as sync
from flbench.tracking.tensorboard_sink import TensorBoardSink
from flbench.tracking.wandb_sink import WandbSink
seconds = Counter()
def timed(owner, name, step):
    call = getattr(owner, name)
    def timing(*arguments, **options):
        start = time.perf_counter()
        try:
            return call(*arguments, **options)
        finally:
            seconds[step] += time.perf_counter() - start
    setattr(owner, name, timing)
timed(sync.Mirror, "send_sweep", "the sweep's table and figures")
timed(mirror, "finished_view", "reading runs")
for sink in (WandbSink, TensorBoardSink):
    timed(sink, "send", "sending runs")
atexit.register(lambda: print(*(f"{step}: {took:.1f} s" for step, took in seconds.items()), sep=", "))
"""


def main(runs: int, options: list[str]) -> None:
    """Print the seconds that the whole command takes, and its steps."""
    with tempfile.TemporaryDirectory() as temporary, serving() as server:
        folder = Path(temporary)
        toys = planned(folder, SPEC.replace("[0, 1]", f"{{range: [0, {runs // 2}]}}"))
        env = environment(folder, WANDB_API_KEY=KEY, WANDB_BASE_URL=server.url)
        start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        done = flbench("sync", "--store", toys.store.root, *options, env=env, before=STEPS)
        seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    print(done.stdout, done.stderr, sep="", end="")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    n = len(toys.experiments)
    print(f"flbench sync {' '.join(options)}: {seconds:.1f} s, {cpu:.1f} s CPU, for n={n} runs of 4 evaluations")
    print(machine_line("flbench", "wandb"))


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 144, sys.argv[2:] or ["--mode", "online"])
