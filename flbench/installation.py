"""How this flbench is installed: where the files that come with it are, and which command adds a package."""

from __future__ import annotations

import re
import shlex
import sys
from importlib.metadata import distribution
from pathlib import Path

_PACKAGE = Path(__file__).parent

#: Where ``hatch_build.py`` puts the files of the repository that are not Python modules into a wheel.
_IN_WHEEL = _PACKAGE / "bundled"


def is_checkout() -> bool:
    """Return whether this is a clone of the repository, and not a wheel."""
    return not _IN_WHEEL.is_dir()


def bundled(path: str) -> Path:
    """Return the place of a file or folder that comes with flbench, by its path in the repository.

    These are ``sweeps``, ``docs``, ``slurm/profiles`` and the pages in the repository's root.
    """
    return (_PACKAGE.parent if is_checkout() else _IN_WHEEL) / path


def install_extra(extra: str) -> str:
    """Return the command that adds the packages of an extra to this environment."""
    if is_checkout() and _installer() == "uv":
        return f"uv sync --extra {extra}"
    return install(*_requirements(extra))


def reinstall(package: str) -> str:
    """Return the command that installs a package again on which flbench depends."""
    if is_checkout() and _installer() == "uv":
        return f"uv sync --reinstall-package {package}"
    again = "--reinstall" if _installer() == "uv" else "--force-reinstall"
    wanted = [one for one in _requirements("") if re.match(r"[\w.-]+", one)[0] == package]  # type: ignore[index]
    return install(again, *wanted)


def summary() -> str:
    """Return the version, what installed it, and from which clone."""
    found = distribution("flbench")
    clone = f", a clone in {_PACKAGE.parent}" if is_checkout() else ""
    return f"{found.version}, installed by {_installer()}{clone}"


def _installer() -> str:
    """Return what installed flbench into this environment: ``uv``, ``pip``, or whatever has left its name."""
    return (distribution("flbench").read_text("INSTALLER") or "pip").strip()


def install(*words: str) -> str:
    """Return the command that installs packages, or what other words say, into the environment of this process."""
    python = shlex.quote(sys.executable)
    command = f"uv pip install --python {python}" if _installer() == "uv" else f"{python} -m pip install"
    return f"{command} {shlex.join(words)}"


def _requirements(extra: str) -> list[str]:
    """Return what an extra requires, or flbench itself (''), as the package's metadata write it."""
    halves = [text.partition(";") for text in distribution("flbench").requires or ()]
    found = {text.strip(): re.search(r"""extra *== *['"]([\w-]+)['"]""", marker) for text, _, marker in halves}
    return [text for text, marker in found.items() if (marker[1] if marker else "") == extra]
