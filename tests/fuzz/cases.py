"""Creates a case from a seed and a number: which input is mutated, how, and which commands read it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from flbench.exchange import exports
from tests.fuzz import mutations

#: Commands on a store. None of them waits for workers.
ON_STORES = """\
status
status --json
status --html page.html
status fuzz
logs fuzz
logs 0
retry fuzz
retry fuzz --failed error --json
gc --dry-run
gc --yes --orphans --last-checkpoints
export out.parquet
export out.parquet fuzz.yaml --ends
verify
verify fuzz --json
report --out out.md
report fuzz.yaml --json
report fuzz.yaml --why --out out.md
report --csv out.csv --html out.html --out out.md
cancel fuzz --no-wait
sweep fuzz.yaml --dry-run
sweep fuzz.yaml --backend inline
import runs.parquet
run norm=ln rounds=1 eval_every=1
run rounds=1
""".splitlines()

#: Commands on a sweep file; SPEC stands for its name.
ON_SPECS = """\
sweep SPEC --dry-run
sweep SPEC --dry-run --json
sweep SPEC --dry-run --limit 3
status SPEC
logs SPEC
report SPEC --json
export out.parquet SPEC
cancel SPEC --no-wait
retry SPEC
""".splitlines()

#: Options of a sweep and fields of a run, each valid for some sweep.
CHANGES = """\
lr=0.3
base.lr=0.3
axes.lr=[0.1,0.3]
grids[0].axes.norm=[ln]
grids.0.set.lr=0.2
seeds=[0,1,2]
method.mu=0.2
base.rounds=40
base.eval_every=5
E=3
clients=7
report.metric=loss
name=other
partition=dirichlet:0.1
model={name: mlp, widths: [4]}
base.probes={features: 5}
retry.max_attempts=5
norm=gn
dataset=digits
participation=0.5
local_epochs=1
kind=centralized
seed=3
precision=bf16
""".splitlines()

#: Commands whose words are mutated; no file is changed.
WORDS = """\
sweep fuzz.yaml --dry-run --workers 2 --backend local
sweep fuzz.yaml --dry-run --profile profile.yaml --backend slurm
sweep fuzz.yaml --dry-run --set lr=0.3 --only norm=ln --limit 3
run norm=ln rounds=1 --threads 1 --device cpu
run kind=sharpness width=20 --executor loop --json
status fuzz --json
logs fuzz
logs 0
cancel fuzz --no-wait
retry fuzz --failed error --only norm=ln
sync fuzz --mode offline --json
gc --dry-run --json
verify fuzz
show methods
show norms --json
show kinds
show run 0 --json
runs fuzz --only norm=ln --columns lr,acc --sort=-acc
runs --results runs.parquet --state done --json
diff norm=ln norm=none --json
show method fedprox
show schema
export out.parquet fuzz.yaml --limit 2 --set lr=0.3
export --contribute ada fuzz.yaml --by Ada --only norm=ln
import runs.parquet
report runs.parquet --json --metric loss --target 0.3 --tune lr --select-by oracle
report fuzz.yaml --json --only norm=ln --tolerance 2
report --results runs.parquet --out out.md
data list
show partition partition=dirichlet:0.1 clients=5 seed=1
plot lr runs.parquet --out out.svg
--version
show partition dataset=digits partition=classes:1 clients=10 min_size=2 --json
data verify digits
""".splitlines()

#: Options of ``report``. Figures take seconds, so they are rare.
REPORTS = [
    *["--json", "--json --metric loss", "--out out.md --why", "--out out.md --csv out.csv --select-by oracle"] * 4,
    *["--out out.md --html out.html --why", "--out out.md --figures figures"],
]

SPECS = ("fuzz.yaml", "fuzz.yaml", "fuzz.yaml", "study.yaml", "quickstart.yaml", "smoke.yaml", "lr_robustness.yaml")


@dataclass
class Case:
    """One input: the changes made in the folder, and the commands that run on it in this order."""

    number: int
    kind: str
    commands: list[list[str]]
    changes: list[str] = field(default_factory=list)


def make(seed: int, number: int, folder: Path) -> Case:
    """Create case ``number``: apply its changes to ``folder``, a copy of the world."""
    case = Case(number, kind_of(seed, number), [])
    KINDS[case.kind](Random(f"{seed}/{number}"), folder, case)
    return case


def kind_of(seed: int, number: int) -> str:
    """Return what a case mutates: a key of ``KINDS``."""
    return Random(f"{seed}/{number}/kind").choices(tuple(KINDS), weights=(25, 15, 20, 15, 25))[0]


def _spec(random: Random, folder: Path, case: Case) -> None:
    name = random.choice(SPECS)
    path = folder / name
    if random.random() < 0.85:
        text = mutations.mutate_text(random, path.read_text())
        path.write_bytes(text.encode(errors="surrogatepass"))
    else:
        path.write_bytes(mutations.mutate_bytes(random, path.read_bytes()))
    case.changes.append(f"{name}:\n{path.read_bytes().decode(errors='replace')}")
    case.commands.append(random.choice(ON_SPECS).replace("SPEC", name).split())


def _options(random: Random, folder: Path, case: Case) -> None:
    changes = [random.choice(CHANGES) for _ in range(random.randint(1, 3))]
    at = random.randrange(len(changes))
    changes[at] = mutations.mutate_word(random, changes[at])
    if random.random() < 0.4:
        case.commands.append(["run", "rounds=1", *changes])
        return
    flags = [word for change in changes for word in (random.choice(("--set", "--set", "--only")), change)]
    case.commands.append([*random.choice(("sweep SPEC --dry-run", "report SPEC --json")).split(), *flags])
    case.commands[-1][1] = random.choice(SPECS)


def _words(random: Random, folder: Path, case: Case) -> None:
    words = random.choice(WORDS).split()
    for _ in range(random.randint(1, 2)):
        at = random.randrange(len(words))
        act = random.randrange(5)
        if act == 0:
            words.insert(at, random.choice(mutations.SCALARS))
        elif act == 1 and len(words) > 1:
            del words[at]
        elif act == 2:
            words.append(words[at])
        else:
            words[at] = mutations.mutate_word(random, words[at])
    if "--no-wait" not in words and words[:1] == ["cancel"]:
        words.append("--no-wait")
    case.commands.append(words)


def _import(random: Random, folder: Path, case: Case) -> None:
    name = random.choice(("runs.parquet", "studies.parquet"))
    path = folder / name
    if random.random() < 0.15:
        path.write_bytes(mutations.mutate_bytes(random, path.read_bytes()))
        case.changes.append(f"{name}: bytes")
    else:
        case.changes += [_forge(random, path) for _ in range(random.randint(1, 3))]
    if random.random() < 0.5:
        case.commands.append(["report", "--results", name, *random.choice(REPORTS).split()])
        return
    store = random.choice(("store", "new"))
    case.commands.append(["import", name, "--store", store])
    case.commands.append(["report", "--store", store, *random.choice(REPORTS).split()])


def _forge(random: Random, path: Path) -> str:
    """Change a row of an exported file, and usually its checksums to match."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    rows = table.to_pylist()
    row = random.choice(rows)
    column = random.choice(("experiment", "result", "metrics", "metrics", "environment", "run_id"))
    if column == "run_id":
        row[column] = random.choice([text for text in mutations.SCALARS if text.isprintable()])
    elif column == "metrics":
        lines = [mutations.mutate_json(random, json.loads(line)) for line in row[column].splitlines()]
        row[column] = "".join(f"{json.dumps(line)}\n" for line in lines)
    else:
        row[column] = json.dumps(mutations.mutate_json(random, json.loads(row[column])))
    if column == "metrics" and random.random() < 0.9:
        data, result = row["metrics"].encode(), json.loads(row["result"])
        result |= {"metrics_sha256": hashlib.sha256(data).hexdigest(), "metrics_bytes": len(data)}
        row["result"] = json.dumps(result)
    if random.random() < 0.9:
        row["sha256"] = exports._checksum(row)
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), path)
    return f"{path.name}: {column} of {row['run_id']!r:.40}: {row[column]!r:.2000}"


def _store(random: Random, folder: Path, case: Case) -> None:
    store = folder / "store"
    for _ in range(random.randint(1, 3)):
        paths = sorted(path for path in store.rglob("*") if not path.is_symlink())
        path = random.choice(paths)
        name = path.relative_to(folder)
        if path.is_dir():
            case.changes.append(f"{name}: {mutations.replace_directory(random, path)}")
        elif path.is_file():
            case.changes.append(f"{name}: {_change_file(random, path)}")
    for path in store.rglob("*"):
        os.utime(path, (0, 0), follow_symlinks=False)  # new files count as signs of life for a minute
    case.commands += [random.choice(ON_STORES).split() for _ in range(random.randint(1, 3))]


def _change_file(random: Random, path: Path) -> str:
    data = path.read_bytes()
    try:
        values = [json.loads(line) for line in (data.splitlines() if path.suffix == ".jsonl" else [data])]
    except ValueError:
        values = []
    act = random.random()
    if act < 0.25:
        return mutations.replace_file(random, path)
    if act < 0.4 or not values:
        path.write_bytes(mutations.mutate_bytes(random, data))
        return f"{path.read_bytes()!r:.1000}"
    at = random.randrange(len(values))
    values[at] = mutations.mutate_json(random, values[at])
    text = "".join(f"{json.dumps(value, separators=(',', ':'))}\n" for value in values)
    path.write_text(text)
    if path.parent.name == "results" and isinstance(values[0], dict):
        _sign(path, values[0])
    if path.name == "metrics.jsonl":
        _match_results(path)
    return f"{path.read_bytes()!r:.1000}"


def _sign(path: Path, raw: dict[str, Any]) -> None:
    """Write a changed result with a valid checksum."""
    raw.pop("sha256", None)
    body = json.dumps(raw, sort_keys=True, separators=(",", ":")).encode()
    digest = hashlib.sha256(body).hexdigest().encode()
    path.write_bytes(body[:-1] + b',"sha256":"%b"}\n' % digest)


def _match_results(metrics: Path) -> None:
    """Make the results of a run consistent with its changed metrics."""
    data = metrics.read_bytes()
    for path in (metrics.parents[2] / "results").glob("*.json"):
        raw = json.loads(path.read_bytes())
        if isinstance(raw, dict):
            lines = data.splitlines()
            raw |= {"metrics_sha256": hashlib.sha256(data).hexdigest(), "metrics_bytes": len(data)}
            raw["final"] = json.loads(lines[-1]) if lines else {}
            _sign(path, raw)


KINDS: dict[str, Callable[[Random, Path, Case], None]] = {
    "sweep file": _spec,
    "options": _options,
    "arguments": _words,
    "exported file": _import,
    "store": _store,
}
