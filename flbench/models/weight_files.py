"""Files of weights, and how a network takes them over: by name and shape.

Nothing in a file is executed: safetensors holds numbers alone, and of torch's files only weights are loaded.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from flbench.checkpoints import NoCheckpoint, load_weights
from flbench.errors import UserError
from flbench.models.base import Model
from flbench.models.heads.base import is_of_head
from flbench.models.starts import Start

Tree = dict[str, Tensor]

#: The name of each type of number in a safetensors file.
_DTYPES: Mapping[str, torch.dtype] = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip

#: Names that a message lists.
_MOST_NAMES = 6

#: Buffers that a network may have and a file may lack, or the other way round: torch counts batches in it.
_OPTIONAL = "num_batches_tracked"


#: Endings of the names of buffers that a network never takes over, in whatever network the weights were trained.
_ANY_FRESH = tuple(sorted({".factor", ".round", ".steps", ".share", ".seen_mean", ".seen_square", f".{_OPTIONAL}"}))


def start_from(network: nn.Module, start: Start, model: Model) -> None:
    """Give a network the weights of a start; those of a random one stay as they are.

    Parameters and buffers are taken by name and shape. The head is new, so random, where the weights have another
    number of classes or no head. Adapters in the weights (``trained_parts``) are added to the weights that they adapt.

    Raises:
        UserError: the file is missing, is another one or holds no weights, its names or shapes do not fit, or a
            parameter is not finite.
    """
    if (path := start.weights_file()) is None:
        return
    stat = path.stat()
    tree = _read(str(path), stat.st_size, stat.st_mtime_ns)
    what = f"init {start.label()} in model {model.label()}"
    named = {model.own_name(name): leaf for name, leaf in _merged(tree, what).items()}
    _take_over(network, named, what, _norms_hint(model))


def _norms_hint(model: Model) -> str:
    """Return what to do about normalization layers left over, for a model whose ``norms`` the axis replaces."""
    if getattr(model, "norms", None) != "axis":
        return ""
    return "; the field norm replaces the model's normalizations: for weights with the model's own use model.norms=own"


def _take_over(network: nn.Module, tree: Tree, what: str, hint: str) -> None:
    """Copy weights into a network; ``hint`` ends the message about names that are left over."""
    fresh = {f"{path}.{name}" for path, one in network.named_modules() for name in getattr(one, "fresh", ())}
    own = dict([*network.named_parameters(remove_duplicate=False), *network.named_buffers(remove_duplicate=False)])
    own = {name: leaf for name, leaf in own.items() if name not in fresh}
    if _head_is_new(own, tree):
        own, tree = ({n: leaf for n, leaf in one.items() if not _depends_on_classes(n)} for one in (own, tree))
    found = {id(own[name]) for name in own.keys() & tree.keys()}  # tied weights have several names
    missing = [name for name, leaf in own.items() if id(leaf) not in found and not name.endswith(_OPTIONAL)]
    left = [name for name in tree if name not in own and name not in fresh and not name.endswith(_ANY_FRESH)]
    others = [name for name in own.keys() & tree.keys() if own[name].shape != tree[name].shape]
    if missing or left or others:
        shapes = [f"{name} {tuple(tree[name].shape)} in place of {tuple(own[name].shape)}" for name in sorted(others)]
        problems = {"missing": missing, "left over": left, "of another shape": shapes}
        told = "; ".join(f"{problem} {_some(names)}" for problem, names in problems.items() if names)
        raise UserError(f"{what}: the weights do not fit the network: {told}{hint if left else ''}")
    with torch.no_grad():
        for name in own.keys() & tree.keys():
            own[name].copy_(tree[name])
    for name, leaf in network.named_parameters():
        if not leaf.isfinite().all():
            raise UserError(f"{what}: {name} holds numbers that are not finite")


def _depends_on_classes(name: str) -> bool:
    return is_of_head(name) or name.startswith("logits.")  # their normalization


def _head_is_new(own: Tree, tree: Tree) -> bool:
    """Whether the weights have a head of other classes, or none."""
    here, there = own.get("head.weight"), tree.get("head.weight")
    if not any(map(_depends_on_classes, tree)):
        return True
    return here is not None and there is not None and here.shape[1:] == there.shape[1:] and len(here) != len(there)


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - _MOST_NAMES} more" if len(listed) > _MOST_NAMES else ""
    return ", ".join(listed[:_MOST_NAMES]) + more


def _merged(tree: Tree, what: str) -> Tree:
    """Add each adapter B A to the weight that it adapts."""
    out = {name: leaf for name, leaf in tree.items() if not name.endswith((".lora_A", ".lora_B"))}
    for name, leaf in tree.items():
        layer, _, kind = name.rpartition(".")
        weight = next((one for one in (f"{layer}.weight", f"{layer}.in_proj_weight") if one in out), None)
        if kind == "lora_A" and weight and f"{layer}.lora_B" in tree:
            try:
                out[weight] = out[weight] + (tree[f"{layer}.lora_B"] @ leaf).view(out[weight].shape)
            except RuntimeError:  # other shapes or types
                raise UserError(f"{what}: the adapter of {weight} in the weights does not fit it") from None
    return out


@lru_cache(maxsize=2)  # a run builds its network several times
def _read(path: str, size: int, changed: int) -> Tree:
    return read_weights(Path(path))


def read_weights(path: Path) -> Tree:
    """Return the tensors of a file by name: safetensors, or what ``torch.save`` wrote of a ``state_dict``.

    Raises:
        UserError: it is neither, is damaged, or holds something else than tensors.
    """
    try:
        if path.suffix == ".safetensors":
            return _of_safetensors(path.read_bytes())
        loaded: Any = load_weights(path)
    except NoCheckpoint:
        raise UserError(
            f"cannot read the weights {path}: expected safetensors, or tensors by name that torch.save wrote (a "
            "state_dict); nothing else is loaded, because it could execute code"
        ) from None
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read the weights {path}: {error}") from None
    while isinstance(loaded, dict) and isinstance(inner := loaded.get("state_dict", loaded.get("model")), dict):
        loaded = inner
    if not isinstance(loaded, dict) or not loaded or not all(isinstance(leaf, Tensor) for leaf in loaded.values()):
        raise UserError(f"cannot read the weights {path}: expected a state_dict, a dict of tensors by name")
    for name, leaf in loaded.items():
        is_dense = leaf.layout is torch.strided and not leaf.is_quantized and leaf.device.type != "meta"
        if not is_dense or leaf.is_complex():
            raise UserError(f"cannot read the weights {path}: {str(name)!r:.80} is no dense tensor of real numbers")
    return {str(name): leaf.detach() for name, leaf in loaded.items()}


def safetensors(tree: Tree) -> bytes:
    """Return the bytes of a safetensors file with these tensors, sorted by name: equal tensors have equal bytes."""
    names = {dtype: name for name, dtype in _DTYPES.items()}
    header: dict[str, Any] = {}
    parts, end = [], 0
    for name in sorted(tree):
        leaf = tree[name].detach().cpu().contiguous()
        parts.append(leaf.reshape(-1).view(torch.uint8).numpy().tobytes())
        header[name] = {"dtype": names[leaf.dtype], "shape": list(leaf.shape)}
        header[name]["data_offsets"] = [end, end + len(parts[-1])]
        end += len(parts[-1])
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(parts)


def _of_safetensors(data: bytes) -> Tree:
    """Read a file: the length of a header, the header in JSON (types, shapes, places), then the numbers."""
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > len(data) - 8:
        raise ValueError("it is cut off, or no safetensors file")
    header, body, tree = json.loads(data[8 : 8 + length]), memoryview(data)[8 + length :], {}
    if not isinstance(header, dict):
        raise ValueError("its header is no mapping")
    last = 0
    for name, one in header.items():
        if name == "__metadata__":
            continue
        try:
            dtype, shape, (begin, end) = _DTYPES[one["dtype"]], list(map(int, one["shape"])), one["data_offsets"]
        except (KeyError, TypeError, ValueError):
            raise ValueError(f"its header has no type, shape and place that flbench knows for {name!r:.80}") from None
        if (
            not 0 <= begin <= end <= len(body)
            or end - begin != math.prod(shape) * dtype.itemsize
            or min(shape, default=0) < 0
        ):
            raise ValueError(f"it is damaged: the place of {name!r:.80} does not fit its shape {shape}")
        raw = torch.frombuffer(bytearray(body[begin:end]), dtype=dtype) if end > begin else torch.empty(0, dtype=dtype)
        tree[name], last = raw.view(shape), max(last, end)
    if last < len(body):
        raise ValueError(f"it is damaged: {len(body) - last} bytes follow the last tensor")
    return tree
