from __future__ import annotations

import ast
from pathlib import Path

import pytest

import flbench
from flbench.tracking import modes
from flbench.tracking.modes import choose, key_source, server


@pytest.fixture(autouse=True)
def nothing_set_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path))
    monkeypatch.setattr(modes, "is_installed", lambda: True)


def test_auto_without_a_key_is_off_and_says_in_one_line_how_to_turn_it_on() -> None:
    choice = choose("auto")
    assert choice.mode == "off"
    assert "wandb login" in choice.note
    assert "WANDB_API_KEY" in choice.note
    assert "\n" not in choice.note


def test_auto_with_a_key_is_online(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    assert choose("auto") == modes.Choice("online")


@pytest.mark.parametrize(
    ("said", "mode"), [("offline", "offline"), ("dryrun", "offline"), ("disabled", "off"), ("online", "online")]
)
def test_auto_listens_to_wandbs_own_variable(monkeypatch: pytest.MonkeyPatch, said: str, mode: str) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    monkeypatch.setenv("WANDB_MODE", said)
    assert choose("auto").mode == mode
    assert choose("offline").mode == "offline"  # what the file asks for by name stands


def test_offline_and_off_need_no_key() -> None:
    assert choose("offline") == modes.Choice("offline")
    assert choose("off") == modes.Choice("off")


def test_online_without_a_key_warns() -> None:
    choice = choose("online")
    assert choice.mode == "off"
    assert choice.note.startswith("warning: ")


def test_missing_package_warns_where_it_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modes, "is_installed", lambda: False)
    assert choose("offline").note.startswith("warning: ")
    assert choose("auto").note.startswith("off: ")
    assert choose("off").note == ""


def test_keys_are_found_where_wandb_finds_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert key_source() is None
    (tmp_path / "netrc").write_text("machine wandb.example.org login user password secret\n")
    assert key_source() is None
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org/")
    assert key_source() == str(tmp_path / "netrc")
    (tmp_path / "netrc").unlink()
    (tmp_path / "settings").write_text("[default]\napi_key = secret\n")
    assert key_source() == str(tmp_path / "settings")
    monkeypatch.setenv("WANDB_API_KEY", "k")
    assert key_source() == "WANDB_API_KEY"


def test_damaged_files_hold_no_key(tmp_path: Path) -> None:
    (tmp_path / "netrc").write_bytes(b"machine \xff\n")
    (tmp_path / "settings").write_text("no section\n")
    assert key_source() is None
    assert server() == "https://api.wandb.ai"


def test_server_is_where_the_settings_say(tmp_path: Path) -> None:
    (tmp_path / "settings").write_text("[default]\nbase_url = https://wandb.example.org\n")
    assert server() == "https://wandb.example.org"


def test_wandb_is_imported_by_nothing_that_a_worker_imports() -> None:
    """Workers lie below the room of the mirror (tests/test_layout.py), and only in that room is wandb imported."""
    package = Path(flbench.__file__).parent
    importing = {path.relative_to(package).parts[0] for path in package.rglob("*.py") if _imports_wandb(path)}
    assert importing == {"tracking"}


def _imports_wandb(path: Path) -> bool:
    nodes = list(ast.walk(ast.parse(path.read_text())))
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    return any(name.split(".")[0] == "wandb" for name in names)
