"""Where training starts (the field ``init``): random weights, a file, published weights, or a stored network.

A start names the SHA-256 of its file, by which it enters the run id; the file may move. That of ``file`` is read when
the experiment is parsed, that of the others when runs are planned (``flbench.pretrained``), because it depends on the
model or on the store. Reading the weights is in ``weight_files``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field

from flbench.config.kinds import fields_of_all_kinds
from flbench.errors import DataMissing, UserError
from flbench.messages import format_scalar, unknown
from flbench.registry import INITS, Component
from flbench.regular import open_regular


@INITS.register("random")
@dataclass(frozen=True)
class Start(Component):
    """Random weights, drawn by the seed; a model that builds itself starts from what its ``build`` returns."""

    source: ClassVar[str] = ""

    @property
    def is_open(self) -> bool:
        """Whether its weights are still to be found, when runs are planned."""
        return False

    def weights_file(self) -> Path | None:
        """Return the file of the weights, or None for random ones; raises UserError if it is missing or another one."""
        return None


@dataclass(frozen=True)
class StoredWeights(Start):
    """Base of the starts from weights; ``content``, the SHA-256 of their file, defines the run."""

    source: ClassVar[str] = ""

    content: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = field(default=None, kw_only=True)

    @property
    def place(self) -> str | None:
        """Return the file, or None if it is still to be found."""
        raise NotImplementedError(f"{type(self).__name__} must define place")

    def identity(self) -> dict[str, Any]:
        """Return the content alone: the same weights from elsewhere are the same start."""
        if self.content is None:
            return super().identity()
        return {"name": "weights", "version": 1, "content": self.content}

    def weights_file(self) -> Path:
        if self.place is None:
            raise UserError(f"init {self.label()}: planning finds its weights; use flbench run or flbench sweep")
        path = Path(self.place).expanduser()
        found = sha256(path, f"init {self.label()}")
        if found != self.content:
            raise UserError(
                f"init {self.label()}: {path} holds other weights than the experiment names: expected the SHA-256 "
                f"{self.content}, found {found}. Restore the file, or plan the experiment again"
            )
        return path


@INITS.register("file")
@dataclass(frozen=True)
class WeightsFile(StoredWeights):
    """A file of weights: safetensors, or a ``state_dict`` that ``torch.save`` wrote; nothing in it is executed.

    ``path`` is absolute or relative to the working directory; the file must be there wherever the sweep file is read,
    unless that names ``content``, the SHA-256 of the file.
    """

    shorthand: ClassVar[str] = "path"
    shorthand_is_text: ClassVar[bool] = True

    path: Annotated[str, Field(min_length=1)]

    def __post_init__(self) -> None:
        """Name the content, so that it enters the run id."""
        if self.content is None:
            try:
                object.__setattr__(self, "content", sha256(Path(self.path).expanduser(), "the weights"))
            except UserError as error:
                raise ValueError(str(error)) from error

    @property
    def place(self) -> str:
        return self.path

    def label(self, always: Iterable[str] = (), write: Callable[[Any], str] = format_scalar) -> str:
        return f"file:{self.path}"


@dataclass(frozen=True)
class PlannedWeights(StoredWeights):
    """Base of the starts whose weights are found when runs are planned.

    ``file`` is where they are then, and ``of_run`` the run that trained them, if it is of the same store.
    """

    file: str | None = field(default=None, kw_only=True)
    of_run: str | None = field(default=None, kw_only=True)

    @property
    def is_open(self) -> bool:
        return self.content is None or self.file is None

    def as_given(self) -> Self:
        return replace(self, content=None, file=None, of_run=None)

    @property
    def place(self) -> str | None:
        return self.file

    def label(self, always: Iterable[str] = (), write: Callable[[Any], str] = format_scalar) -> str:
        """Return the form that the user writes, without what planning has found."""
        return super().label(always, write) if self == self.as_given() else self.as_given().label(always, write)


@INITS.register("torchvision")
@dataclass(frozen=True)
class TorchvisionWeights(PlannedWeights):
    """Torchvision's weights for ``model: torchvision:ARCH``, from the files that torch has already downloaded.

    They are looked up in torch's folder of weights (``$TORCH_HOME/hub/checkpoints``, usually in ~/.cache/torch);
    nothing is downloaded. ``weights`` names one of several, such as IMAGENET1K_V1; default: torchvision's own default.
    """

    shorthand: ClassVar[str] = "weights"
    shorthand_is_text: ClassVar[bool] = True

    weights: str | None = None


@INITS.register("package")
@dataclass(frozen=True)
class PackageWeights(PlannedWeights):
    """The weights that an installed package ships for the model: ImageNet's for ``model: efficientnet-lite0``."""

    source: ClassVar[str] = ""


@INITS.register("run")
@dataclass(frozen=True)
class RunWeights(PlannedWeights):
    """The trained network of a stored run, after its last round. ``run`` is its id, or the beginning of it.

    Planning copies the weights into the store, so that they outlive the run's checkpoints.
    """

    shorthand: ClassVar[str] = "run"
    shorthand_is_text: ClassVar[bool] = True

    run: str

    def __post_init__(self) -> None:
        """Refuse what is no run id."""
        if not re.fullmatch("[0-9a-f]{4,16}", self.run):
            raise ValueError(f"expected a run id, or at least 4 of its 16 hexadecimal digits, got {self.run!r:.80}")


@INITS.register("sweep")
@dataclass(frozen=True)
class SweepWeights(PlannedWeights):
    """The trained network of the run of another sweep that has the same values in the fields ``match``.

    If several runs match, the one with the experiment's seed. In YAML: ``{sweep: pretrain, match: [model, norm]}``.

    Attributes:
        sweep: the sweep file, or NAME for ``sweeps/NAME.yaml``.
        match: fields of the experiment, at least one.
    """

    shorthand: ClassVar[str] = "sweep"
    shorthand_is_text: ClassVar[bool] = True

    sweep: Annotated[str, Field(min_length=1)]
    match: Annotated[tuple[str, ...], Field(min_length=1)] = ("model", "norm")

    def __post_init__(self) -> None:
        """Refuse names that are no fields."""
        known = sorted(fields_of_all_kinds())
        for name in self.match:
            if name not in known:
                raise ValueError(f"match: {unknown('field', name, known)}")


def sha256(path: Path, what: str) -> str:
    """Return the SHA-256 of a file, read once for each size and time of change; raises UserError."""
    try:
        stat = path.stat()
        return _sha256(str(path.absolute()), stat.st_size, stat.st_mtime_ns)
    except FileNotFoundError:
        raise DataMissing(f"{what}: there is no file {path.absolute()}") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{what}: cannot read {path}: {getattr(error, 'strerror', None) or error}") from None


@lru_cache(maxsize=64)
def _sha256(path: str, size: int, changed: int) -> str:
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
