"""Deep ReLU MLPs on real data: ranks of every layer, through initialization, pre-training and training.

Daneshmand et al. 2020, figures 1, 3 and 4: networks of many layers of equal width, with or without batch normalization
before each ReLU, whose weights may have a nonzero mean, and whose ranks may be raised before training.

Shape suffixes: M samples, B batch, D features, Y classes; H_l is what enters the ReLU of layer l.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from flbench.data.batches import consecutive_rows
from flbench.methods.base import Tree
from flbench.streams import stream
from flbench.studies.base import Record, Study
from flbench.studies.choices import DeepNorm, Init, Optimizer, PretrainVariant
from flbench.studies.rank_study import ranks

#: Samples on which ranks and the statistics of batch normalization are taken.
PROBE_SAMPLES = 1000

#: Samples in a batch of pre-training: a new one every step, and the one batch of the authors' code.
PRETRAIN_BATCH = 128
CODE_BATCH = 32

#: The authors' code raises the ranks of layers 5, 9, 13, ...
CODE_FIRST, CODE_EVERY = 5, 4

EPS = 1e-5


@dataclass(frozen=True)
class DeepMlp:
    """The network.

    Attributes:
        depth: hidden layers.
        width: their units.
        norm: ``bn`` normalizes every H_l over the batch, with a learned affine map.
        init: of the weights: ``torch``'s default U(-b, b), b = 1 / sqrt(fan_in), its biases too; ``he`` normal, with
            biases 0; or ``glorot`` normal, N(0, 2 / (fan_in + fan_out)), with torch's biases, as in the authors' code.
        shift: moves the domain of ``torch``'s weights to U(-b + shift b, b + shift b); at 1 it is positive.
    """

    depth: int
    width: int
    norm: DeepNorm = "none"
    init: Init = "torch"
    shift: float = 0.0

    def draw(self, inputs: int, classes: int, seed: int) -> Tree:
        """Return initial parameters."""
        sizes = [inputs, *[self.width] * self.depth, classes]
        tree: Tree = {}
        for layer in range(1, self.depth + 2):
            fan_in, fan_out = sizes[layer - 1], sizes[layer]
            generator = stream(seed, "deep layer", layer)
            bound = 1 / math.sqrt(fan_in)
            if self.init == "he":
                weight = generator.standard_normal((fan_out, fan_in)) * math.sqrt(2 / fan_in)
                bias = np.zeros(fan_out)
            elif self.init == "glorot":
                weight = generator.standard_normal((fan_out, fan_in)) * math.sqrt(2 / (fan_in + fan_out))
                bias = bound * generator.uniform(-1, 1, fan_out)
            else:
                weight = bound * (generator.uniform(-1, 1, (fan_out, fan_in)) + self.shift)
                bias = bound * generator.uniform(-1, 1, fan_out)
            tree |= {f"w{layer}": torch.from_numpy(weight).float(), f"b{layer}": torch.from_numpy(bias).float()}
            if self.norm == "bn" and layer <= self.depth:
                tree |= {f"gain{layer}": torch.ones(fan_out), f"shift{layer}": torch.zeros(fan_out)}
        return tree

    def layers(self, p: Tree, x_MD: Tensor, statistics: list[Tensor] | None = None) -> Iterator[Tensor]:
        """Yield H_1, H_2, ... and at last the logits.

        Args:
            p: parameters.
            x_MD: inputs.
            statistics: means and variances of every layer to normalize with; None: those of this batch.
        """
        h = x_MD
        for layer in range(1, self.depth + 1):
            u = F.linear(h, p[f"w{layer}"], p[f"b{layer}"])
            if self.norm == "bn":
                var, mean = statistics[layer - 1] if statistics else (None, None)
                affine = p[f"gain{layer}"], p[f"shift{layer}"]
                u = F.batch_norm(u, mean, var, *affine, training=statistics is None, eps=EPS)
            yield u
            h = torch.relu(u)
        yield F.linear(h, p[f"w{self.depth + 1}"], p[f"b{self.depth + 1}"])

    def logits(self, p: Tree, x_MD: Tensor, statistics: list[Tensor] | None = None) -> Tensor:
        """Return the logits alone, and free each layer's activations on the way."""
        for h in self.layers(p, x_MD, statistics):
            logits = h
        return logits

    def statistics(self, p: Tree, x_MD: Tensor) -> list[Tensor]:
        """Return variance and mean (2, D) of what every layer normalizes, on these samples."""
        h, found = x_MD, []
        for layer, u in enumerate(self.layers(p, x_MD), start=1):
            if layer > self.depth:
                break
            found.append(torch.stack(torch.var_mean(F.linear(h, p[f"w{layer}"], p[f"b{layer}"]), 0, correction=0)))
            h = torch.relu(u)
        return found


@dataclass(frozen=True)
class Pretraining:
    """Raising the ranks r(H_l) by gradient steps before training.

    Attributes:
        steps: on each layer; 0 with ``rescale`` is the control that shows the effect of rescaling alone.
        variant: ``text``: ascent on r(H_l) in the weights and biases of layer l, one layer after the other, those
            before it frozen, each step on new samples. ``code``: as in the authors' code, descent on 1 / r(H_l) of
            every fourth layer in the weights of all layers up to it, all steps on one small batch.
        optimizer: ``adam`` or plain ``sgd``, which the code has; the poster names neither.
        lr: its step size.
        rescale: divide each layer's weights and biases afterwards so that H_l has root mean square sqrt(2), as with
            He's weights. r is scale-free; where layers are raised alone, activations fade from layer to layer without.
    """

    steps: int
    variant: PretrainVariant = "text"
    optimizer: Optimizer = "adam"
    lr: float = 1e-3
    rescale: bool = True


def pretrain(network: DeepMlp, params: Tree, x_MD: Tensor, how: Pretraining, seed: int) -> Tree:
    """Return parameters whose hidden representations have higher rank."""
    params = dict(params)
    if how.variant == "code":
        params |= _raise_together(network, params, x_MD, how, seed)
    for layer in range(1, network.depth + 1):
        if how.variant == "text":
            params |= _raise_alone(network, params, x_MD, how, seed, layer)
        if how.rescale:
            with torch.no_grad():
                scale = math.sqrt(2) / _layer(network, params, x_MD[:PROBE_SAMPLES], layer).square().mean().sqrt()
            params |= {name: scale * params[name] for name in (f"w{layer}", f"b{layer}")}
    return params


def _raise_alone(network: DeepMlp, params: Tree, x_MD: Tensor, how: Pretraining, seed: int, layer: int) -> Tree:
    """Return the layer's own parameters after ascent on its rank."""
    own = {name: params[name].clone().requires_grad_() for name in (f"w{layer}", f"b{layer}")}
    optimizer = _optimizer(own, how)
    for step in range(how.steps):
        rows = stream(seed, "pretraining", layer, step).choice(len(x_MD), min(PRETRAIN_BATCH, len(x_MD)), False)
        optimizer.zero_grad()
        h_BD = _layer(network, params | own, x_MD[torch.from_numpy(rows)], layer)
        (-differentiable_rank(h_BD)).backward()
        optimizer.step()
    return {name: leaf.detach() for name, leaf in own.items()}


def _raise_together(network: DeepMlp, params: Tree, x_MD: Tensor, how: Pretraining, seed: int) -> Tree:
    """Return all weights that the authors' code changes."""
    rows = stream(seed, "pretraining batch").choice(len(x_MD), min(CODE_BATCH, len(x_MD)), False)
    x_BD = x_MD[torch.from_numpy(rows)]
    raised: Tree = {}
    for layer in range(CODE_FIRST, network.depth + 1, CODE_EVERY):
        names = [f"w{before}" for before in range(1, layer + 1)]
        own = {name: (params | raised)[name].clone().requires_grad_() for name in names}
        optimizer = _optimizer(own, how)
        for _ in range(how.steps):
            optimizer.zero_grad()
            (1 / differentiable_rank(_layer(network, params | raised | own, x_BD, layer))).backward()
            optimizer.step()
        raised |= {name: leaf.detach() for name, leaf in own.items()}
    return raised


def _optimizer(own: Tree, how: Pretraining) -> torch.optim.Optimizer:
    kind = torch.optim.Adam if how.optimizer == "adam" else torch.optim.SGD
    return kind(own.values(), lr=how.lr)


def _layer(network: DeepMlp, params: Tree, x_MD: Tensor, wanted: int) -> Tensor:
    """H_l of one layer."""
    for layer, h in enumerate(network.layers(params, x_MD), start=1):
        if layer == wanted:
            return h
    raise ValueError(f"there are {network.depth} layers, and layer {wanted} was asked for")


def differentiable_rank(h_BD: Tensor) -> Tensor:
    """Return r(H) = Tr(M)^2 / ||M||_F^2 (eq. 2), of samples by features."""
    h_BD = h_BD / h_BD.detach().square().mean().sqrt()  # M^2 under- and overflows in float32
    gram = h_BD @ h_BD.mT if len(h_BD) < h_BD.shape[1] else h_BD.mT @ h_BD
    return gram.diagonal().sum().square() / gram.square().sum()


class DeepTraining(Study):
    """Plain SGD on a deep MLP, perhaps after pre-training; a round is a pass through the training set.

    ``train`` and ``test`` are standardized inputs (M, D) and labels (M,). Without ``lr`` nothing is trained.
    """

    def __init__(
        self,
        network: DeepMlp,
        pretraining: Pretraining | None,
        *,
        train: tuple[Tensor, Tensor],
        test: tuple[Tensor, Tensor],
        classes: int,
        lr: float | None,
        batch_size: int,
        seed: int,
    ) -> None:
        drawn = network.draw(train[0].shape[1], classes, seed)
        params = {name: leaf.to(train[0].device) for name, leaf in drawn.items()}
        if pretraining is not None:
            params = pretrain(network, params, train[0], pretraining, seed)
        super().__init__(params)
        self._network, self._train_set, self._test_set = network, train, test
        self._lr, self._batch_size, self._seed = lr, batch_size, seed

    def _train(self) -> float:
        if self._lr is None:
            return 0.0
        images, labels = self._train_set
        steps = max(1, len(labels) // self._batch_size)
        rows_EB = consecutive_rows(
            np.arange(len(labels)),
            seed=self._seed,
            first_step=self.round * steps,
            steps=steps,
            batch_size=self._batch_size,
        )
        leaves = {name: leaf.clone().requires_grad_() for name, leaf in self.x.items()}
        total = 0.0
        for rows in torch.from_numpy(rows_EB):
            loss = F.cross_entropy(self._network.logits(leaves, images[rows]), labels[rows])
            gradients = torch.autograd.grad(loss, list(leaves.values()))
            with torch.no_grad():
                torch._foreach_add_(list(leaves.values()), gradients, alpha=-self._lr)
            total += loss.item()
        self.x = {name: leaf.detach() for name, leaf in leaves.items()}
        return total / steps

    @torch.no_grad()
    def _measure(self) -> Record:
        network = self._network
        x_MD = self._train_set[0][:PROBE_SAMPLES]
        *hidden, _ = network.layers(self.x, x_MD)
        per_layer = [ranks(h.mT) for h in hidden]
        statistics = network.statistics(self.x, x_MD) if network.norm == "bn" else None
        record: dict[str, Any] = {**per_layer[-1], "ranks": [one["rank"] for one in per_layer]}
        if self._lr is None:
            return record
        for name, (images, labels) in (("train", self._train_set), ("test", self._test_set)):
            # In pieces: a layer of all samples is larger than the network.
            logits = torch.cat([network.logits(self.x, some, statistics) for some in images.split(PROBE_SAMPLES)])
            record[f"{name}_acc"] = float((logits.argmax(1) == labels).double().mean())
            record[f"{name}_loss"] = float(F.cross_entropy(logits, labels))
        return record


def standardized(train_MCHW: np.ndarray[Any, Any], test_MCHW: np.ndarray[Any, Any]) -> tuple[Tensor, Tensor]:
    """Return both sets flattened, minus the training pixels' mean, over their standard deviation: (M, D) each."""
    mean, deviation = train_MCHW.mean(), train_MCHW.std()

    def one(images: np.ndarray[Any, Any]) -> Tensor:
        return torch.from_numpy((images.reshape(len(images), -1) - mean) / deviation).float()

    return one(train_MCHW), one(test_MCHW)
