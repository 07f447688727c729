from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import flbench
from flbench.choices import TrackingMode
from flbench.tracking.sink import NotTracked
from flbench.tracking.trackers import choose

KEY = "k" * 40

MODES: tuple[TrackingMode, ...] = ("auto", "online", "offline", "off")


@pytest.fixture(autouse=True)
def nothing_set_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def off(mode: TrackingMode) -> NotTracked:
    with pytest.raises(NotTracked) as raised:
        choose(mode)
    return raised.value


@pytest.mark.parametrize("wandb_mode", ["offline", "dryrun", "disabled", "online"])
def test_auto_follows_wandbs_own_variable(monkeypatch: pytest.MonkeyPatch, wandb_mode: str) -> None:
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setenv("WANDB_MODE", wandb_mode)
    if wandb_mode == "disabled":
        assert "turned off" in str(off("auto"))
    else:
        assert choose("auto")[0] == {"dryrun": "offline"}.get(wandb_mode, wandb_mode)
    assert choose("offline")[0] == "offline"  # an explicit mode overrides it
    assert choose("online")[0] == "online"


def test_only_online_needs_a_login() -> None:
    assert choose("offline")[0] == "offline"
    assert [off(mode).failed for mode in MODES if mode != "offline"] == [False, True, False]
    note = str(off("auto"))
    assert "wandb login" in note and "WANDB_API_KEY" in note and "\n" not in note


def test_a_missing_package_is_a_failure_only_if_a_mode_was_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert [off(mode).failed for mode in MODES] == [False, True, True, False]
    assert "install it again: " in str(off("auto"))


def test_logins_and_the_server_are_found_where_wandb_finds_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    netrc, settings = tmp_path / "netrc", tmp_path / "settings"
    netrc.write_text(f"machine wandb.example.org login user password {KEY}\n")
    off("auto")
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org/")
    assert choose("auto") == ("online", "https://wandb.example.org")
    netrc.unlink()
    off("auto")
    settings.write_text(f"[default]\napi_key = {KEY}\n")
    assert choose("auto")[0] == "online"
    monkeypatch.delenv("WANDB_BASE_URL")
    settings.write_text("[default]\nbase_url = https://wandb.example.org\n")
    assert choose("offline")[1] == "https://wandb.example.org"
    netrc.write_text("machine\n")
    settings.write_text("no section\n")
    off("auto")
    netrc.write_bytes(b"machine \xff\n")
    assert off("auto").failed


def test_an_invalid_key_is_reported_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "tooshort")
    choice = off("auto")
    assert choice.failed
    assert "WANDB_API_KEY" in str(choice)
    assert "tooshort" not in str(choice)


def test_wandb_is_imported_by_nothing_that_a_worker_imports() -> None:
    """Workers are below the room of the mirror (tests/test_layout.py), and only that room imports wandb."""
    package = Path(flbench.__file__).parent
    importing = set()
    for path in package.rglob("*.py"):
        nodes = list(ast.walk(ast.parse(text))) if "wandb" in (text := path.read_text()) else []
        names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
        names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
        if any(name.split(".")[0] == "wandb" for name in names):
            importing.add(path.relative_to(package).parts[0])
    assert importing == {"tracking"}
