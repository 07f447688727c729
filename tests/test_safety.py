"""flbench executes nothing in files from other people, follows no path in them, and keeps secrets out of files.

The tests call the real command line.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import pickle
import stat
import subprocess
import sys
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import pytest
from typer.testing import CliRunner

import flbench
from flbench.cli import app
from flbench.errors import UserError
from flbench.literal import visible
from flbench.store import Entry, Lease, Store, encode_plan, strict_json
from flbench.store.secrets import redact
from tests.faults.stub import experiments
from tests.report.stores import claim
from tests.warm import warm_python

ROOT = Path(__file__).parents[1]
ENVIRON = {**os.environ, "PYTHONPATH": str(ROOT)}
SPEC = "version: 1\nname: toy\nbase: {dataset: digits, rounds: 2, E: 1}\naxes: {norm: [none, ln]}\nseeds: [0]\n"


def cli(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture
def marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the path of a file that hostile content would create; check at the end that it does not exist."""
    path = tmp_path / "executed"
    monkeypatch.setenv("FLBENCH_STORE", str(tmp_path / "store"))
    monkeypatch.chdir(tmp_path)
    yield path
    assert not path.exists()


class Hostile:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self._path}",)


def raw_pickle(path: Path, marker: Path) -> None:
    path.write_bytes(pickle.dumps({"trainer": Hostile(marker)}, protocol=2))


def torch_file(path: Path, marker: Path) -> None:
    import torch

    torch.save({"numerics": {}, "fingerprint": "", "trainer": Hostile(marker)}, path)


def old_torch_file(path: Path, marker: Path) -> None:
    import torch

    torch.save({"trainer": Hostile(marker)}, path, _use_new_zipfile_serialization=False)


def compressed_torch_file(path: Path, marker: Path) -> None:
    """A file of some kilobytes that unpacks to 40 MB."""
    import torch

    torch.save({"numerics": {}, "fingerprint": "", "trainer": torch.zeros(10**7)}, plain := path.with_suffix(".plain"))
    with ZipFile(plain) as source, ZipFile(path, "w", ZIP_DEFLATED) as target:
        for part in source.infolist():
            target.writestr(part.filename, source.read(part))
    plain.unlink()
    assert path.stat().st_size < 10**5


@pytest.mark.parametrize("write", [raw_pickle, torch_file, old_torch_file, compressed_torch_file])
def test_a_hostile_checkpoint(marker: Path, write: Any) -> None:
    """Replace a run's checkpoint by a hostile one with a valid checksum, then extend the run."""
    fields = ["run", "dataset=digits", "norm=none", "E=1", "--threads", "1", "--json"]
    first = cli(*fields, "rounds=1")
    assert first.exit_code == 0, first.stdout
    directory = Path(json.loads(first.stdout)["directory"])
    (checkpoint,) = directory.glob("attempts/*/checkpoint/*.pt")
    write(checkpoint, marker)
    checksum = hashlib.sha256(checkpoint.read_bytes()).hexdigest()[:16]
    checkpoint.rename(checkpoint.with_name(f"{checkpoint.stem.partition('-')[0]}-{checksum}.pt"))
    extended = cli(*fields, "rounds=2")
    assert extended.exit_code == 0, extended.stdout  # starts from the beginning, because the file cannot be read
    log = (directory / "attempts/0002/log.txt").read_text()
    assert "not resuming from round 1: " in log
    assert (write is compressed_torch_file) == (": compressed" in log)
    assert cli("verify", "--recompute", "1").exit_code == 0
    assert cli("gc", "--yes").exit_code == 0


TAGS = [
    "!!python/object/apply:os.system ['touch {marker}']",
    "!!python/object/new:os.system ['touch {marker}']",
    "!!python/name:os.system",
    "!!python/module:os",
    "!!java.lang.Runtime x",
    "!command 'touch {marker}'",
]


@pytest.mark.parametrize("tag", TAGS)
def test_hostile_yaml_in_a_sweep_and_in_options(marker: Path, tmp_path: Path, tag: str) -> None:
    hostile = tag.format(marker=marker)
    for text in (f"version: 1\nname: x\nbase: {hostile}\n", f"{hostile}\n", f"version: 1\nname: {hostile}\n"):
        (tmp_path / "spec.yaml").write_text(text)
        for command in ("sweep", "report", "status", "cancel", "export out.parquet"):
            result = cli(*command.split(), "spec.yaml")
            assert isinstance(result.exception, UserError), (command, result.stdout)
    (tmp_path / "spec.yaml").write_text(SPEC)
    for option in ("--set=base.rounds=", "--only=norm="):
        assert isinstance(cli("sweep", "spec.yaml", option + hostile).exception, UserError)
    assert isinstance(cli("run", f"lr={hostile}").exception, UserError)
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("tag", TAGS)
def test_hostile_yaml_in_a_profile(marker: Path, tmp_path: Path, tag: str) -> None:
    (tmp_path / "spec.yaml").write_text(SPEC + "backend: {kind: slurm, profile: profile.yaml}\n")
    for text in (f"partition: {tag}\n", f"{tag}\n", f"setup:\n  - {tag}\n"):
        (tmp_path / "profile.yaml").write_text(text.format(marker=marker))
        result = cli("sweep", "spec.yaml", "--backend", "slurm", "--dry-run")
        assert isinstance(result.exception, UserError), result.stdout
        assert "tag" in str(result.exception)
    assert not (tmp_path / "store").exists()


def is_seen(character: str) -> bool:
    return unicodedata.category(character) not in {"Cc", "Cf", "Co", "Cs", "Zl", "Zp"}


def test_no_character_without_a_sign_passes() -> None:
    """All of Unicode's control, format, private and surrogate characters are written out, and no letter is."""
    everything = [chr(code) for code in range(sys.maxunicode + 1)]
    passed = {one for one in everything if visible(one) == one}
    assert {one for one in passed if not is_seen(one)} == {"\t", "\n"}
    assert not passed & {"\u061c", "\u180e", "\u00ad", "\U000e0041", "\u034f", "\u3164", "\ufe0f"}
    assert set("aé漢字\U0001f4a9 ±²") <= passed
    assert visible("a\u061cb\x1b[2J\U000e0041") == r"a\u061cb\x1b[2J\U000e0041"


def outside(tmp_path: Path) -> Path:
    """Create a directory beside the store that looks like a run with a damaged result."""
    other = tmp_path / "outside"
    (other / "results").mkdir(parents=True)
    (other / "results/00000001.json").write_text("{")
    (other / "attempts/0001").mkdir(parents=True)
    (other / "log.txt").write_text("a secret diary\n")
    return other


def files_below(path: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def test_a_hostile_store_names_nothing_outside_of_it(marker: Path, tmp_path: Path) -> None:
    """Put paths in place of ids, tokens and process ids in a store's files; nothing outside of the store is touched."""
    other = outside(tmp_path)
    before = files_below(other)
    store = Store(tmp_path / "store")
    (one, two) = experiments(2)
    directory = store.sweeps / "toy/abc"
    directory.mkdir(parents=True)
    for run_id in ("../../outside", "..", "/etc", f"{one.run_id}/../../../outside", "A" * 16, "", 7, None):
        line = {"run_id": run_id, "cell_id": "c", "experiment": one.to_json()}
        (directory / "plan.jsonl").write_text(json.dumps(line) + "\n")
        for command in (["status"], ["logs", "toy"], ["retry", "toy"], ["verify"], ["gc", "--yes", "--orphans"]):
            cli(*command)
    (directory / "plan.jsonl").write_bytes(encode_plan([one, two]))
    # The lease of a live process on this machine, except for the hostile value.
    lease = Lease.here().to_json()
    for number, change in enumerate(({"token": "../../outside"}, {"pid": -1}, {"pid": "1"}, {"token": "a/b"})):
        attempt = store.claim(one if number % 2 else two, Lease.here())
        if attempt is not None:
            (attempt.path / "lease.json").write_text(json.dumps({**lease, **change}))
        (store.workers / str(number)).mkdir()
        (store.workers / str(number) / "lease.json").write_text(json.dumps({**lease, "plan": "toy/abc", **change}))
    assert store.live_workers() == []
    for command in (["status", "--json"], ["logs", "toy"], ["cancel", "toy", "--no-wait"], ["gc", "--yes"]):
        result = cli(*command)
        assert result.exit_code == 0, (command, result.exception)
        assert "diary" not in result.stdout
    assert files_below(other) == before


def test_a_hostile_message_does_nothing_to_the_terminal(marker: Path, tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    plan = experiments(2)
    directory = store.sweeps / "toy/abc"
    directory.mkdir(parents=True)
    hostile = "\x1b]0;title\x07\x9b2J\u202e"
    lines = [Entry.of(one) for one in plan]
    lines[0].experiment["precision"] = hostile
    (directory / "plan.jsonl").write_bytes(strict_json.join_lines(vars(one) for one in lines))
    failed, running = (store.claim(one, Lease.here()) for one in plan)
    assert failed is not None
    assert running is not None
    failed.log(hostile)
    failed.end("error", hostile)
    lease = {**Lease.here().to_json(), "host": hostile, "boot_id": "another"}
    (running.path / "lease.json").write_text(json.dumps(lease))
    for command in (["status"], ["logs", "toy"], ["verify"], ["cancel", "toy"], ["retry", "toy"]):
        result = cli(*command)
        assert result.stdout
        assert not {"\x1b", "\x07", "\x9b", "\u202e"} & {*result.stdout}, command
    assert "\\x1b]0;title" in cli("status").stdout


NAMES = [
    "../evil",
    "a/b",
    "/etc/evil",
    "..",
    ".",
    ".hidden",
    "a\\nb",
    "a\\x1b[31m",
    "a\\0b",
    "a\\u202eb",
    "",
    "a b",
    "x" * 65,
]


@pytest.mark.parametrize("name", NAMES)
def test_a_sweeps_name_cannot_be_a_path(marker: Path, tmp_path: Path, name: str) -> None:
    """The name is refused before anything is written, and the message shows its control characters escaped."""
    (tmp_path / "spec.yaml").write_text(SPEC.replace("name: toy", f'name: "{name}"'), encoding="utf-8")
    before = files_below(tmp_path)
    result = cli("sweep", "spec.yaml")
    assert isinstance(result.exception, UserError)
    assert str(result.exception).isprintable()
    assert files_below(tmp_path) == before
    assert not (tmp_path / "store").exists()


def calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def test_the_code_never_executes_a_file() -> None:
    """Allow only the pickle reader of plain arrays, torch.load of weights, no eval and no shell."""
    forbidden = {"eval", "exec", "compile", "os.system", "pickle.load", "pickle.loads", "yaml.load", "marshal.loads"}
    for path in sorted(Path(flbench.__file__).parent.rglob("*.py")):
        source = path.read_text()
        tree = ast.parse(source)
        for name, call in calls(tree):
            where = f"{path}:{call.lineno}: {name}"
            keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
            assert name not in forbidden, where
            assert name != "torch.load" or keywords.get("weights_only") == "True", where
            assert keywords.get("allow_pickle", "False") == "False", where
            assert keywords.get("shell", "False") == "False", where
        imported = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
        assert (
            not imported & {"pickle", "cloudpickle", "marshal", "shelve", "yaml", "dill"}
            or path.name == "torchvision_files.py"
        )


SECRETS = {
    "WANDB_API_KEY": "wandb-0123456789abcdef",
    "HF_TOKEN": "hf_ABCDEFGH",
    "AWS_SECRET_ACCESS_KEY": "aws/secret+key",
    "AWS_ACCESS_KEY_ID": "AKIA1234567890",
    "AWS_SESSION_TOKEN": "session-token-value",
    "PGPASSWORD": "swordfish",
    "SOME_CREDENTIALS": "cred-cred-cred",
    "MY_SECRET": "hunter2hunter2",
}


@pytest.mark.parametrize(
    ("environ", "text", "shown"),
    [
        (
            SECRETS,
            "put wandb-0123456789abcdef to https://me:swordfish@host/x and git+ssh://git@host, a:b@c",
            "put *** to https://***@host/x and git+ssh://git@host, a:b@c",
        ),
        ({}, "https://ghp_0123456789abcdefgh@github.com/x", "https://***@github.com/x"),
        # A value as short as abc is no secret.
        ({"A_KEY": "abc", "B_KEY": "abcdef"}, "abc abcdef", "abc ***"),
    ],
)
def test_secrets_of_the_environment_and_in_addresses_are_redacted(
    environ: dict[str, str], text: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", environ)
    assert redact(text) == shown


def test_no_message_contains_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    store = Store(tmp_path / "store")
    attempt = claim(store, *experiments(1))
    text = f"cannot log in with {SECRETS['WANDB_API_KEY']}"
    attempt.log(text)
    attempt.describe({"argv": ["x", f"--key={SECRETS['MY_SECRET']}"]})
    attempt.end("error", text)
    assert attempt.environment() == {"argv": ["x", "--key=***"]}
    for content in files_below(store.root).values():
        assert not any(value.encode() in content for value in SECRETS.values())


@pytest.mark.slow
@pytest.mark.parametrize("umask", [0o027, 0o077])
def test_files_follow_the_umask_and_contain_no_secrets_of_the_environment(tmp_path: Path, umask: int) -> None:
    """A sweep in processes and every other command that writes into a store, with a secret as an argument, too."""
    (tmp_path / "spec.yaml").write_text(SPEC)
    store = tmp_path / "store"
    secret = f"--data={SECRETS['MY_SECRET']}"
    for command in (
        ("sweep", "spec.yaml", "--workers", "1", secret),
        ("run", "dataset=digits", "norm=none", "E=1", "rounds=1", "lr=0.5", secret),
        ("export", "out.parquet"),
        ("cancel", "toy"),
        ("gc", "--yes"),
    ):
        done = subprocess.run(
            [warm_python(), "-c", "from flbench.cli import main; main()", *command],
            cwd=tmp_path,
            env={**os.environ, **SECRETS, "FLBENCH_STORE": str(store), "PYTHONPATH": str(ROOT)},
            umask=umask,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
    found = files_below(tmp_path)
    assert any(b"--data" in content for content in found.values())
    assert [name for name, content in found.items() for value in SECRETS.values() if value.encode() in content] == []
    modes = {path: stat.S_IMODE(path.lstat().st_mode) for path in (*store.rglob("*"), tmp_path / "out.parquet")}
    assert len(modes) > 30
    wrong = {path: oct(mode) for path, mode in modes.items() if mode != (0o777 if path.is_dir() else 0o666) & ~umask}
    assert wrong == {}
