"""The features of a data set under a fixed network, as a numpy archive that ``arrays`` reads: ``flbench data embed``.

Shape suffixes: M samples, B batch, C channels, H, W pixels, D features.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from flbench.data.arrays import Arrays, Data, fingerprint
from flbench.data.images import reading
from flbench.engine.device_data import as_input
from flbench.errors import UserError
from flbench.messages import reason, unknown
from flbench.models.initial_weights import build
from flbench.models.norms import Norm
from flbench.registry import MODELS
from flbench.regular import open_regular
from flbench.store import RunDir
from flbench.trained import trained

Floats = NDArray[np.float32]

#: Mean and standard deviation of a channel's values in [0, 1] by which networks of torchvision are trained.
_IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

#: The network of the extra ``pretrained``, and its authors' mean and deviation: 127 and 128 of 255.
LITE = "efficientnet-lite0"
_OF_LITE = (127 / 255,) * 3, (128 / 255,) * 3

#: Beginning of the names of torchvision's networks.
_TORCHVISION = "torchvision:"

#: Side of the images on which networks of ImageNet are trained.
_IMAGENET_SIZE = 224


@dataclass(frozen=True)
class Backbone:
    """A fixed network and what its input is made of.

    Attributes:
        features: from the prepared batch (B, C, H, W) to (B, D).
        record: what it is, as JSON: provenance.
        shape: of a sample that it takes, where only one can be; None in its places where any can.
        size: side to which images are resized (bilinear with antialiasing); None: as they are.
        normalization: mean and deviation of each channel.
    """

    features: Callable[[Tensor], Tensor]
    record: Mapping[str, Any]
    shape: tuple[int, ...] | None = None
    size: int | None = None
    normalization: tuple[tuple[float, ...], tuple[float, ...]] | None = None

    def embed(self, samples: NDArray[Any], white: int, device: str) -> Floats:
        """Return the features (B, D) of raw samples."""
        x = as_input(torch.from_numpy(np.array(samples)).to(device), white, torch.float32)
        if self.size is not None:
            x = F.interpolate(x, (self.size, self.size), mode="bilinear", antialias=True, align_corners=False)
        if self.normalization is not None:
            mean, deviation = (torch.tensor(part, device=device)[:, None, None] for part in self.normalization)
            x = (x.expand(-1, len(mean), -1, -1) - mean) / deviation  # grey images in three equal channels
        with torch.no_grad():
            out: Floats = self.features(x).flatten(1).float().cpu().numpy()
        return out


def of_run(
    run: RunDir, round: int | None, client: int, data_root: Path | None, size: int | None, device: str
) -> Backbone:
    """Return the trained network of a stored run; its features are the input of its head. Raises as ``trained``."""
    found = trained(run, round, data_root, client)
    record = {"network": run.experiment().to_json()["model"], "run": run.run_id, "round": found.round}
    record |= {"client": client, "trained_on": found.data.fingerprint}
    network = found.network.to(device)
    return Backbone(lambda x: network(x)[0], record, found.data.shape, size)


def pretrained(name: str, weights: Path | None, size: int | None, data: Data, device: str) -> Backbone:
    """Return a network by name with the weights of a file; the features are the input of its last dense layer.

    Args:
        name: ``efficientnet-lite0`` (the extra ``pretrained``), ``torchvision:ARCH`` for a classification network of
            torchvision, or a model of flbench, without a norm.
        weights: file that ``torch.save`` wrote of the network's ``state_dict``; ``efficientnet-lite0`` has its own.
        size: side to which images are resized; None: 224 for networks of ImageNet.
        data: the data set whose features are asked for.
        device: where to compute.

    Raises:
        UserError: no such network, or the weights are missing or do not fit.
    """
    if name == LITE:
        from flbench.models.efficientnet_network import EfficientNetLite0

        network: nn.Module = EfficientNetLite0(dropout=0, drop_connect=0)
        normalization = _OF_LITE
        weights = weights or MODELS.parse(LITE).package_weights()
    elif not name.startswith(_TORCHVISION) and name not in MODELS.classes:
        raise UserError(unknown("network", name, [f"{_TORCHVISION}ARCH", *MODELS.classes]))
    elif weights is None:
        raise UserError(f"network {name}: give a file of its weights by --weights; {LITE} alone has its own")
    elif name.startswith(_TORCHVISION):
        network, normalization = _of_torchvision(name.removeprefix(_TORCHVISION)), _IMAGENET
    else:
        return _own(name, weights, size, data, device)
    state, record = _state(weights), {"network": name, "weights": weights.name, "sha256": _sha256(weights)}
    _load(network, state, name, weights)
    place = [place for place, one in network.named_modules() if isinstance(one, nn.Linear)][-1]
    parent, _, key = place.rpartition(".")
    setattr(network.get_submodule(parent), key, nn.Identity())
    size = size or _IMAGENET_SIZE
    network = network.eval().to(device)
    network = network.to(memory_format=torch.channels_last)  # half the time on a CPU
    return Backbone(network, {**record, "size": size}, None, size, normalization)


def embedded(
    data: Data, backbone: Backbone, device: str, batch: int, advance: Callable[[int], None]
) -> tuple[Floats, Floats]:
    """Return the features of train and test, (M, D) each; ``advance`` is called with the number of samples done.

    Raises:
        UserError: the network does not take the samples, or returns something else than finite numbers.
    """
    _require_fit(data, backbone)
    halves = []
    for half in (data.train.images, data.test.images):
        features: Floats | None = None
        for start in range(0, len(half), batch):
            try:
                part = backbone.embed(half[start : start + batch], data.white, device)
            except (RuntimeError, ValueError, IndexError) as error:
                shape = "x".join(map(str, data.train.images.shape[1:]))
                raise UserError(f"the network does not take samples of {shape}: {reason(error)}") from error
            if not np.isfinite(part).all():
                raise UserError("the network's features are not all finite numbers")
            if features is None:
                features = np.empty((len(half), part.shape[1]), np.float32)
            features[start : start + batch] = part
            advance(len(part))
        assert features is not None
        halves.append(features)
    return halves[0], halves[1]


def write(path: Path, data: Data, features: tuple[Floats, Floats], record: Mapping[str, Any]) -> dict[str, Any]:
    """Write the archive.

    Returns:
        What it was made from: ``provenance`` in the file, JSON as bytes.

    Raises:
        UserError: the file cannot be written.
    """
    halves = [
        Arrays(own, np.asarray(half.labels), half.domains)
        for own, half in zip(features, (data.train, data.test), strict=True)
    ]
    arrays: dict[str, NDArray[Any]] = {}
    for half, before, after in zip(("train", "test"), (data.train, data.test), halves, strict=True):
        arrays |= {f"x_{half}": after.images, f"y_{half}": after.labels}
        arrays |= {} if before.domains is None else {f"{half}_client": np.asarray(before.domains)}
        for place, (group, names) in enumerate(data.group_names.items()):
            assert before.groups is not None
            arrays[f"{half}_{group}"] = np.array([*names, ""])[before.groups[:, place]]
    provenance = {
        **record,
        "of": data.fingerprint,
        "content": fingerprint(halves[0], halves[1], data.classes),
        "train": list(features[0].shape),
        "test": list(features[1].shape),
        "classes": list(data.class_names),
        "flbench": version("flbench"),
        "torch": str(torch.__version__),
    }
    arrays["provenance"] = np.frombuffer(json.dumps(provenance).encode(), np.uint8)
    building = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with building.open("wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
        building.replace(path)
    except OSError as error:
        building.unlink(missing_ok=True)
        raise UserError(f"cannot write {path}: {error.strerror or error}") from error
    return provenance


def _require_fit(data: Data, backbone: Backbone) -> None:
    shape, size = data.shape, backbone.size
    if (size or backbone.normalization) and len(shape) != 3:
        raise UserError(f"the network takes images, and the data set has samples of {shape}")
    if backbone.normalization is not None and shape[0] not in (1, 3):
        raise UserError(f"the network takes images of one or three channels, and the data set's have {shape[0]}")
    given = (shape[0], size, size) if size else shape
    if backbone.shape is not None and given != backbone.shape:
        resize = f"; --size {backbone.shape[-1]} resizes them" if shape[:1] == backbone.shape[:1] and not size else ""
        raise UserError(f"the network takes samples of {backbone.shape}, and the data set has {given}{resize}")


def _of_torchvision(name: str) -> nn.Module:
    from torchvision import models

    known = models.list_models(module=models)
    if name not in known:
        raise UserError(unknown("network", name, known, "torchvision"))
    network: nn.Module = models.get_model(name, weights=None)
    if not any(isinstance(module, nn.Linear) for module in network.modules()):
        raise UserError(f"network {name}: it has no dense layer whose input could be the features")
    return network


def _own(name: str, weights: Path, size: int | None, data: Data, device: str) -> Backbone:
    """A model of flbench, with a bias if the weights have one."""
    state = _state(weights)
    head = state.get("head.weight")
    if not isinstance(head, Tensor) or head.dim() != 2:
        raise UserError(f"{weights}: it has no head.weight (classes, D), as the weights of flbench's models do")
    shape = (data.shape[0], size, size) if size else data.shape
    model = MODELS.parse(name)
    if problem := model.problem(shape):
        raise UserError(f"network {name}: {problem}")
    network = build(model, shape, len(head), Norm(), "head.bias" in state, seed=0)
    _load(network, state, name, weights)
    record = {"network": name, "weights": weights.name, "sha256": _sha256(weights), "size": size}
    network = network.eval().to(device)
    return Backbone(lambda x: network(x)[0], record, shape, size)


def _state(path: Path) -> dict[str, Any]:
    """Return the tensors of a file that ``torch.save`` wrote; nothing in it is executed."""
    if not path.exists():
        raise UserError(f"--weights: there is no file {path}")
    with reading(path), open_regular(path) as file:
        state = torch.load(file, map_location="cpu", weights_only=True)
    if not isinstance(state, dict):
        raise UserError(f"{path} holds no weights by name (a state_dict)")
    return state


def _load(network: nn.Module, state: dict[str, Any], name: str, path: Path) -> None:
    own = network.state_dict()
    wrong = [key for key in own if key not in state or getattr(state[key], "shape", None) != own[key].shape]
    if wrong or (left := sorted(state.keys() - own.keys())):
        what = f"it lacks {wrong[0]} of shape {tuple(own[wrong[0]].shape)}" if wrong else f"it has {left[0]} besides"
        raise UserError(f"{path} does not fit network {name}: {what}")
    network.load_state_dict(state)


def _sha256(path: Path) -> str:
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
