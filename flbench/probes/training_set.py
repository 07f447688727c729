"""The model on the training set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from flbench.probes.base import Observation, Probe
from flbench.registry import PROBES

#: Images in a forward pass.
BATCH = 2000


@PROBES.register("training_set")
@dataclass(frozen=True)
class TrainingSet(Probe):
    """The model on the training images of all clients, without augmentation and in evaluation mode.

    ``acc``: the share that it classifies correctly; ``loss``: its mean cross-entropy. The distance to the test set's
    numbers is the generalization gap. FedVLS's code reports this accuracy on MNIST.
    """

    lists: ClassVar[Mapping[str, int] | None] = {}
    source: ClassVar[str] = ""

    def measure(self, seen: Observation) -> dict[str, Any]:
        import torch
        from torch.nn.functional import cross_entropy

        model, correct, loss, count = seen.access.model(), 0, 0.0, 0
        with torch.no_grad():
            for images, labels in seen.access.training_set(BATCH):
                _, logits = seen.access.forward(*model, images, training=False)
                correct += int((logits.argmax(1) == labels).sum())
                loss += cross_entropy(logits.double(), labels, reduction="sum").item()
                count += len(labels)
        return {"acc": correct / count, "loss": loss / count}
