"""The files that the cases mutate: a store with runs in every state, exported files, sweep files.

All numbers are made up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from flbench.config import Experiment
from flbench.exchange import exports, transfer
from flbench.planning import write_plan
from flbench.store import Attempt, Lease, Store, files, strict_json
from flbench.store.attempts import ending
from flbench.sweeps import load_sweep
from tests.faults.stub import Done
from tests.report.stores import ENVIRONMENT, NUMERICS

ROOT = Path(__file__).parents[2]

#: A sweep file that uses most of the keys.
SPEC = """\
version: 1
name: fuzz
base:
  dataset: digits
  model: {name: mlp, widths: [8]}
  clients: 10
  rounds: 20
  eval_every: 10
  E: 2
  probes: {features: 10, drift: {every: 10}}
grids:
  - set: {partition: "classes:1", lr: 0.1}
    axes: {method: [fedavg, {name: fedprox, mu: 0.1}], norm: [none, ln]}
  - set: &centralized {kind: centralized, lr: 0.05}
    axes: {norm: [none, gn]}
overrides:
  - {if: {norm: ln}, set: {lr: 0.2}}
exclude:
  - {method: fedprox, norm: ln}
seeds: [0, 1]
report: {metric: acc, rows: [method, norm], cols: [partition], baseline: {method: fedavg, norm: none}, tune: [lr]}
resources: {cpus: 1}
retry: {max_attempts: 2}
wandb: {mode: "off"}
backend: {kind: local, workers: 1}
"""

STUDY = """\
version: 1
name: study
base: {kind: sharpness, width: 20, samples: 10}
axes: {normalized: [none, bn-last], width: {range: [10, 30, 10]}}
seeds: {range: [0, 2]}
"""


def build(folder: Path) -> None:
    """Create all files in an empty folder."""
    for name, text in (("fuzz.yaml", SPEC), ("study.yaml", STUDY)):
        (folder / name).write_text(text)
    for name in ("quickstart", "smoke", "lr_robustness"):
        (folder / f"{name}.yaml").write_bytes((ROOT / f"sweeps/{name}.yaml").read_bytes())
    (folder / "profile.yaml").write_bytes((ROOT / "slurm/profiles/cpu.yaml").read_bytes())
    store = Store(folder / "store")
    sweep = load_sweep(folder / "fuzz.yaml")
    write_plan(store, sweep)
    done, other, diverged, failed, lost, interrupted, *_ = sweep.experiments
    for experiment in (done, other):
        _finish(store, experiment)
    _finish(store, diverged, diverged=True)
    _begin(store, failed).end("error", "ValueError: the toy is broken")
    _begin(store, interrupted).end("interrupted", "stopped", 10)
    _begin(store, lost)
    lease = Lease.here("aworker0")
    (store.workers / lease.token).mkdir()
    dead = {**lease.to_json(), "boot_id": "another", "pid_start": "1", "plan": f"{sweep.name}/{sweep.spec_hash}"}
    files.replace(store.workers / lease.token / "lease.json", strict_json.pretty(dead))
    files.disk.touch(store.workers / lease.token / "heartbeat")
    store.record_death(lease.token, ending("signal", "its worker was killed by SIGKILL"))
    exported, problems = transfer.export_runs(store, store.run_ids())
    assert not problems
    exports.write(folder / "runs.parquet", exported)
    _write_studies(folder / "studies.parquet")


def _write_studies(path: Path) -> None:
    """Write a few of the committed results of every kind of study."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables = [pq.read_table(ROOT / f"results/{name}.parquet") for name in ("feature_collapse", "rank", "sharpness")]
    chosen = [table.slice(at, 4) for table in tables for at in (0, table.num_rows // 2)]
    pq.write_table(pa.concat_tables(chosen).replace_schema_metadata(tables[0].schema.metadata), path)


def records(experiment: Experiment, rounds: Sequence[int]) -> list[dict[str, Any]]:
    """Return the records of a training on ten classes, with made-up numbers."""
    return [
        {
            "round": round,
            **dict.fromkeys(("acc", "acc_weighted", "acc_global", "acc_worst", "acc_sd", "loss", "train_loss"), 0.5),
            **{"clients": [0.5, None], "recall": [0.1] * 10, "clients_tested": 5, "seconds": 0.1 * round},
            **{"bytes_up": 1000 * round, "bytes_down": 1000 * round},
            "probes": {
                "features": {
                    **{"rank": 2.0, "soft_rank": 2, "singular": [1.0, 0.5], "first_share": 0.6, "norm": 1.0},
                    **{"norm_sd": 0.1, "head_norms": [1.0] * 10},
                },
                "drift": {"agreement": 0.5, "cosine": 0.5, "mean_norm": 1.0, "update_norm": 1.0},
            },
        }
        for round in rounds
    ]


def _begin(store: Store, experiment: Experiment) -> Attempt:
    attempt = store.claim(experiment, Lease(**{**Lease.here().to_json(), "pid_start": "1", "token": "aworker0"}))
    assert attempt is not None
    attempt.adopt(None)
    attempt.describe(ENVIRONMENT)
    attempt.log("began")
    attempt.record(records(experiment, [10])[0])
    attempt.save_checkpoint(10, lambda file: file.write(b"no checkpoint"))
    return attempt


def _finish(store: Store, experiment: Experiment, *, diverged: bool = False) -> None:
    attempt = _begin(store, experiment)
    rounds = [10] if diverged else sorted(experiment.evaluated_rounds())
    files.replace(attempt.metrics_path, strict_json.join_lines(records(experiment, rounds)))
    attempt.publish(
        status="diverged" if diverged else "done",
        rounds=rounds[-1],
        seconds=1.0,
        fingerprint="feedfacecafebeef",
        numerics=NUMERICS,
    )
    attempt.end("ok", round=rounds[-1])


def publish_at_once(experiment: Experiment, attempt: Attempt, *, should_stop: Callable[[], bool]) -> Done:
    """Publish made-up numbers at once, in place of training."""
    rounds = sorted(experiment.evaluated_rounds())
    files.replace(attempt.metrics_path, strict_json.join_lines(records(experiment, rounds)), sync=False)
    attempt.publish(status="done", rounds=rounds[-1], seconds=1.0, fingerprint="feedfacecafebeef", numerics=NUMERICS)
    return Done("done", rounds[-1])
