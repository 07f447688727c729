"""Where components come from: this package, the entry points of other packages, and plug-in files."""

from __future__ import annotations

import hashlib
import importlib
import logging
import pkgutil
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import TypeVar

from flbench.errors import PROCESS_ENDS, InvalidComponent, text_of
from flbench.plugin_files import load_plugins

_log = logging.getLogger(__name__)


class Discovery:
    """Imports the modules that register the components of one kind, in the same order everywhere.

    Attributes:
        broken: why entry points could not be loaded, by their name.
        sources: hashes of the source code of other packages and plug-in files, as it was when they were loaded.
    """

    def __init__(self, kind: str, module: str, group: str) -> None:
        """Take the name of the kind, the module or the folder of modules here, and the group of entry points."""
        self.kind, self.module, self.group = kind, module, group
        self.broken: dict[str, str] = {}
        self.sources: dict[str, str] = {}

    def load(self) -> None:
        """Import them all; a warning names each entry point that cannot be loaded.

        Raises:
            UserError: a plug-in file is missing or raises an error.
        """
        self.load_own()
        for point in entry_points(group=self.group):
            try:
                point.load()
                package = package_of(point.module)
                self.sources[package] = _source_hash(package)
            except (Exception, *PROCESS_ENDS) as error:
                package = f"the package {point.dist.name!r}" if point.dist else "a package"
                reason = " ".join(text_of(error).split()) or type(error).__name__
                offer = f"{package} offers the {self.kind} {point.name!r} ({point.value})"
                self.broken[point.name] = f"{offer}, which cannot be loaded: {reason}"
                _log.warning("%s; update or uninstall it", self.broken[point.name])
        self.sources |= {module: _source_hash(module) for module in load_plugins()}

    def load_own(self) -> None:
        """Import those of this package."""
        here = importlib.import_module(self.module)
        for found in pkgutil.iter_modules(getattr(here, "__path__", ())):  # sorted by name
            importlib.import_module(f"{self.module}.{found.name}")

    def before(self, module: str) -> None:
        """Import those of this package before another package registers one: a name that both have is its mistake."""
        if package_of(module) != package_of(__name__):
            self.load_own()

    def source_of(self, module: str) -> str:
        """Return the source code behind a module of another package, as ``package=hash``; empty for our own."""
        package = package_of(module)
        return f"{package}={self.sources[package]}" if package in self.sources else ""


E = TypeVar("E")


class Entries(Mapping[str, E]):
    """What registers under a name without being a component, such as figures; loaded on first use.

    The names are in the order of registration: this package's, then those of other packages and of plug-in files.
    """

    def __init__(self, kind: str, module: str, group: str) -> None:
        """Take what ``Discovery`` takes."""
        self._entries: dict[str, E] = {}
        self._modules: dict[str, str] = {}
        self._discovery = Discovery(kind, module, group)
        self._loaded = False

    def add(self, name: str, entry: E, module: str) -> None:
        """Add an entry that a module declares; raises InvalidComponent for a name that another one has."""
        self._discovery.before(module)
        if self._entries.setdefault(name, entry) != entry:
            places = f"{self._modules[name]} and {module}"
            raise InvalidComponent(f"{self._discovery.kind} {name!r} is registered twice, in {places}")
        self._modules[name] = module

    def source(self, name: str) -> str:
        """Return the source code behind an entry of another package, as ``package=hash``; empty for our own."""
        return self._discovery.source_of(self._modules[name]) if name in self._all() else ""

    def _all(self) -> dict[str, E]:
        if not self._loaded:
            self._loaded = True  # before: a plug-in file that asks for an entry finds what there is
            try:
                self._discovery.load()
            except BaseException:
                self._loaded = False
                raise
        return self._entries

    def __getitem__(self, name: str) -> E:
        return self._all()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())


def package_of(module: str) -> str:
    """Return the first part of a module's name."""
    return module.partition(".")[0]


def plugin_packages() -> set[str]:
    """Return the installed packages that add something to flbench."""
    groups = [group for group in entry_points().groups if group.startswith("flbench.")]
    return {package_of(point.module) for group in groups for point in entry_points(group=group)}


@cache
def _source_hash(package: str) -> str:
    """Return the first 16 hex digits of the sha256 over all Python files of an imported package or module."""
    module, sha = sys.modules[package], hashlib.sha256()
    folders = [Path(folder) for folder in getattr(module, "__path__", ())]
    files = [(path.relative_to(folder), path) for folder in folders for path in folder.rglob("*.py")]
    if not folders and module.__file__:
        files = [(Path(Path(module.__file__).name), Path(module.__file__))]
    for name, path in sorted(files):
        content = path.read_bytes()
        sha.update(f"{name.as_posix()} {len(content)};".encode() + content)
    return sha.hexdigest()[:16]
