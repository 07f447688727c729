"""Exported files and contributions of strangers: they are refused, execute nothing, and take no memory."""

from __future__ import annotations

import hashlib
import json
import pickle
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flbench.cli import main
from flbench.config import canonical_json
from flbench.errors import UserError
from flbench.exchange import exports
from flbench.report.cells import cells_of, rows_of
from flbench.report.runs import collect
from flbench.run_sources import StoreSource
from flbench.store import Store
from tests.exchange.hostile_files import HOSTILE, Change, export, rewrite
from tests.report.stores import experiment, filled, finish
from tests.test_safety import ENVIRON, Hostile, cli, marker  # noqa: F401  the fixture
from tests.warm import warm_python


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A file with one run of two evaluations."""
    folder = tmp_path_factory.mktemp("sound")
    return export(filled(folder / "a", [experiment()]), folder / "runs.parquet").read_bytes()


@pytest.fixture
def path(sound: bytes, tmp_path: Path) -> Path:
    """A copy of it."""
    (path := tmp_path / "runs.parquet").write_bytes(sound)
    return path


def field(**texts: str) -> Change:
    """Replace columns."""
    return lambda row: row.update(texts)


def result(**changes: Any) -> Change:
    """Change fields of the result."""
    return lambda row: row.update(result=canonical_json({**json.loads(row["result"]), **changes}))


def samples(value: object, **changes: Any) -> Change:
    """Change the numbers of images that the result was computed on."""

    def change(row: dict[str, Any]) -> None:
        result(environment={**json.loads(row["result"])["environment"], "samples": value}, **changes)(row)

    return change


def metrics(edit: Callable[[str], str]) -> Change:
    """Change the metrics, and their checksum and size in the result."""

    def change(row: dict[str, Any]) -> None:
        row["metrics"], before = edit(row["metrics"]), row["metrics"]
        assert row["metrics"] != before
        data = row["metrics"].encode()
        result(metrics_sha256=hashlib.sha256(data).hexdigest(), metrics_bytes=len(data))(row)

    return change


def last(old: str, new: str) -> Change:
    """Replace the last such text in the metrics, which is in the last record."""
    return metrics(lambda text: new.join(text.rsplit(old, 1)))


def flipped(row: dict[str, Any]) -> None:
    row["metrics"] = row["metrics"].replace("0.6", "0.7")


OFFICIAL = "e3713c9c6ae47b99"
COUNTS = "samples: expected two counts of images"

#: Changes of a row whose checksum is computed again, as an attacker would: each field of a result or of its records
#: that a report computes with. Each has a part of what is said of it.
DAMAGE: dict[str, tuple[Change, str]] = {
    "one count of images": (samples("360"), COUNTS),
    "counts that are words": (samples("a/b"), COUNTS),
    "counts of thousands of digits": (samples(f"1/{'9' * 5000}"), COUNTS),
    "no test images": (samples("1442/0"), COUNTS),
    "counts that are a number": (samples(360), COUNTS),
    "more test images than the official data have": (
        samples("1442/355000000", fingerprint=OFFICIAL),
        "it names 1442/355000000 images in train and test, its data set has 1442/355",
    ),
    "an accuracy above 1": (last('"acc":0.6', '"acc":1.5'), "acc: expected 0 to 1, got 1.5"),
    "an accuracy below 0": (last('"acc":0.6', '"acc":-0.5'), "acc: expected 0 to 1, got -0.5"),
    "a text as an accuracy": (last('"acc":0.6', '"acc":"x"'), "acc: expected a number, got 'x'"),
    "a number that overflows": (last('"acc":0.6', '"acc":1e999'), "metrics"),
    "recall above 1": (last('"recall":[0.6,null]', '"recall":[7,null]'), "recall: expected 0 to 1, got 7"),
    "a text as recall": (last('"recall":[0.6,null]', '"recall":"x"'), "recall: expected a list of numbers"),
    "texts in recall": (last('"recall":[0.6,null]', '"recall":["x"]'), "recall: expected a list of numbers"),
    "a client's accuracy above 1": (last('"clients":[0.6', '"clients":[6'), "clients: expected 0 to 1"),
    "negative times": (last('"seconds":', '"seconds":-'), "seconds: expected 0 to inf"),
    "negative bytes": (last('"acc":0.6', '"bytes_up":-9,"acc":0.6'), "bytes_up: expected 0 to inf"),
    "a round that is no number": (last('"round":20', '"round":"x"'), "round: expected a whole number"),
    "probes that are a list": (last('"acc":0.6', '"probes":[1],"acc":0.6'), "probes: expected a mapping"),
    # A mean of the last evaluations would count the first one twice.
    "evaluations twice": (metrics(lambda text: text.splitlines(True)[0] + text), "its metrics do not ascend"),
    "other metrics": (flipped, "its metrics"),
    "an attempt that is no number": (result(attempt="x"), "attempt: "),
    "a fingerprint that is no text": (result(fingerprint=7), "fingerprint: "),
    "a date that is no text": (result(published=7), "published: "),
    "probes that are no texts": (result(probes=[7]), "probes"),
    "thousands of facts": (result(numerics=dict.fromkeys(map(str, range(1000)), 1)), "at most 100 facts"),
    "nested settings": (result(numerics={"device": ["cpu"]}), "numerics: "),
    "a path as rounds": (result(rounds="../../x"), "cannot be used"),
    "negative rounds": (result(rounds=-1), "rounds: Input should be greater than or equal to 0"),
    "more rounds than fit": (result(rounds=10**19, wanted=10**19), "rounds: "),
    "evaluated later than it ended": (result(rounds=10), "rounds: "),
    "negative seconds": (result(seconds=-1), "seconds: "),
    "an unknown status": (result(status="perfect"), "cannot be used"),
    "an invented record": (result(final={"round": 20, "acc": 1.0}), "last record"),
    "an invented evaluation": (result(evaluated=[5, 10, 20]), "lack evaluations"),
    "an unknown key": (result(path="/etc/passwd"), "path: missing, or unknown"),
    "no JSON": (field(result="{"), "cannot be used"),
    "a path as run id": (field(run_id="../../../../etc"), "its run id is none"),
    "another run's result": (field(run_id="0" * 16), "belongs to run"),
    "an infinite version": (field(environment='{"python":1e400}'), "no finite number"),
    "a lone surrogate": (field(environment='{"cpu":"\\ud800"}'), "surrogates not allowed"),
    "a list as experiment": (field(experiment="[]"), "experiment: expected an object"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_rows_are_refused(path: Path, damage: str) -> None:
    change, says = DAMAGE[damage]
    rewrite(path, change)
    with pytest.raises(UserError, match=re.escape(says)):
        exports.read(path)


@pytest.mark.parametrize(("forged", "says"), [("360", COUNTS), ("1442/355000000", "its data set has 1442/355")])
def test_verify_and_report_agree_on_forged_counts_of_images(
    tmp_path: Path, forged: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What ``verify`` calls sound has the interval of the data set; what it does not, ``report`` does not use."""
    monkeypatch.chdir(tmp_path)
    store = Store(tmp_path / "store")
    for seed in range(3):
        finish(store, experiment(seed=seed), 0.7 + 0.05 * seed, fingerprint=OFFICIAL, samples=(1442, 355))
    rewrite(export(store, tmp_path / "forged.parquet"), samples(forged))
    checked = cli("verify", "--results", "forged.parquet")
    assert checked.exit_code == 1 and says in checked.output
    assert isinstance(cli("report", "--json", "--results", "forged.parquet").exception, UserError)
    # The same in a store, with its checksum.
    interval = rows_of(cells_of(collect(StoreSource(store)).runs, "acc"))[0].half_width
    (file,) = (store.run(experiment().run_id).path / "results").iterdir()
    raw = json.loads(file.read_bytes())
    del raw["sha256"]
    raw["environment"]["samples"] = forged
    body = canonical_json(raw).encode()
    file.write_bytes(body[:-1] + b',"sha256":"%b"}\n' % hashlib.sha256(body).hexdigest().encode())
    checked = cli("verify", "store")
    assert checked.exit_code == 1 and says in checked.output
    (cell,) = rows_of(cells_of(collect(StoreSource(store)).runs, "acc"))
    assert cell.half_width == interval if len(cell.values) == 3 else len(cell.values) == 2


def in_version(version: str) -> Callable[[Path], object]:
    def change(path: Path) -> None:
        pq.write_table(pq.read_table(path).replace_schema_metadata({"flbench.schema": version}), path)

    return change


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (Path.unlink, "no such file"),
        (lambda path: path.write_bytes(b""), "not a readable parquet file"),
        (lambda path: path.write_bytes(b"PAR1 not really PAR1"), "not a readable parquet file"),
        (lambda path: path.write_bytes(path.read_bytes()[:-100]), "not a readable parquet file"),
        (lambda path: pq.write_table(pa.table({"x": [1]}), path), "not one written by `flbench export`"),
        (lambda path: rewrite(path, flipped, sign=False), "its checksum does not fit"),
        (in_version("9" * 5000), "not one written by `flbench export`"),
        (in_version("3"), "written by a newer flbench (schema 3, this one reads 2)"),
    ],
)
def test_unusable_files_are_refused(path: Path, change: Callable[[Path], object], says: str) -> None:
    change(path)
    with pytest.raises(UserError, match=re.escape(says)):
        exports.read(path)


def test_a_file_that_needs_more_memory_than_there_is(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def crowded(*_: object) -> None:
        raise pa.lib.ArrowMemoryError("malloc of size 9 failed")

    monkeypatch.setattr(exports, "unpacked", crowded)
    with pytest.raises(UserError, match=r"runs\.parquet: its rows need more memory than is free here"):
        exports.read(path)


def test_nothing_in_a_file_is_executed(marker: Path, tmp_path: Path) -> None:  # noqa: F811
    """Load neither Python objects in a parquet file's metadata nor a pickle with the suffix .parquet."""
    payload = pickle.dumps(Hostile(marker))
    columns = ("run_id", "experiment", "result", "metrics", "environment", "sha256")
    metadata = {b"ARROW:extension:name": b"arrow.py_extension_type", b"ARROW:extension:metadata": payload}
    fields = [pa.field(name, pa.string(), metadata=metadata) for name in columns]
    schema = pa.schema(fields, metadata={b"flbench.schema": b"1", b"pandas": payload})
    row = dict.fromkeys(columns, "{}") | {"run_id": "../../../../etc/x"}
    pq.write_table(pa.Table.from_pylist([row], schema=schema), tmp_path / "hostile.parquet")
    (tmp_path / "pickle.parquet").write_bytes(payload)
    for name in ("hostile.parquet", "pickle.parquet"):
        assert isinstance(cli("import", name).exception, UserError)
        assert isinstance(cli("report", "--results", name).exception, UserError)
    assert not (tmp_path / "store").exists()


#: Reads exported files by every command, then prints how each ended and the most memory that all took, in MiB.
READING = """
import contextlib, io, json, os, sys
from flbench.cli import main
said = {}
for name in sys.argv[1:]:
    for command in ("verify --results", "import", "report --json --results"):
        sys.argv = ["flbench", *command.split(), name]
        with contextlib.redirect_stderr(io.StringIO()) as err, contextlib.redirect_stdout(io.StringIO()) as out:
            try:
                main()
                code = 0
            except SystemExit as ended:
                code = ended.code
        said[f"{name} {command}"] = (code, err.getvalue() + out.getvalue())
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(json.dumps([said, int(status["VmHWM"].split()[0]) / 1024]))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's account of a process's memory")
def test_a_file_that_unpacks_to_far_more_than_its_size_takes_no_memory(
    marker: Path,  # noqa: F811
    path: Path,
    tmp_path: Path,
) -> None:
    """Read them in a process that needs little more memory than for a sound file."""

    def read(*names: str) -> tuple[dict[str, list[Any]], float]:
        command = [warm_python(), "-c", READING, *names]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, env=ENVIRON)
        return json.loads(done.stdout)  # type: ignore[no-any-return]

    for write in HOSTILE:
        write(tmp_path / f"{write.__name__}.parquet")
    sound, usual = read(path.name)
    assert [code for code, _ in sound.values()] == [0, 0, 0], sound
    hostile, memory = read(*(f"{write.__name__}.parquet" for write in HOSTILE))
    assert memory < usual + 130, f"{memory:.0f} MiB, and {usual:.0f} MiB for a sound file"
    for write, says in HOSTILE.items():
        for command, code in (("verify --results", 1), ("import", 2), ("report --json --results", 2)):
            ended, message = hostile[f"{write.__name__}.parquet {command}"]
            assert ended == code, (command, message)
            assert says in message, command


def test_a_contribution_named_with_controls_does_nothing_to_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "contributed/a\x1b[2Jb"
    folder.mkdir(parents=True)
    for path in (folder, tmp_path / "a\x1b[2J.parquet"):
        monkeypatch.setattr("sys.argv", ["flbench", "verify", "--results", str(path)])
        with pytest.raises(SystemExit):
            main()
        said = "".join(capsys.readouterr())
        assert "\x1b" not in said and r"a\x1b[2J" in said
