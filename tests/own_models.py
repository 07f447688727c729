"""Models of another package: plain torch modules that a model builds itself."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from flbench.models.base import Model
from flbench.models.norms import Norm
from flbench.models.sites import Shape, Site


class Halves(nn.Module):
    """A body and a head."""

    def __init__(self, body: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.body, self.head = body, head

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(images)
        return features, self.head(features)


@dataclass(frozen=True)
class Pretrained(Model):
    """A frozen body with batch normalization, of which the first layer is given and the rest drawn; two trained layers.

    ``thawed``: nothing is frozen.
    """

    thawed: bool = False

    def build(self, image: Shape, classes: int, norm: Norm, bias: bool) -> nn.Module:
        first = nn.Linear(image[0] * image[1] * image[2], 6)
        nn.init.constant_(first.weight, 0.5)
        frozen = nn.Sequential(first, nn.BatchNorm1d(6), nn.BatchNorm1d(6, affine=False), nn.Linear(6, 6), nn.ReLU())
        frozen[1].running_mean.fill_(0.25)
        frozen.requires_grad_(self.thawed)
        trained = nn.Sequential(nn.Linear(6, 8), norm.layer(Site("after", (8,))) or nn.Identity(), nn.ReLU())
        return Halves(nn.Sequential(nn.Flatten(), frozen, trained), nn.Linear(8, classes))


@dataclass(frozen=True)
class FrozenCnn(Model):
    """A frozen convolution, a trained one and a dense layer."""

    def build(self, image: Shape, classes: int, norm: Norm, bias: bool) -> nn.Module:
        first = nn.Conv2d(image[0], 4, 3, padding=1)
        first.requires_grad_(False)
        body = nn.Sequential(first, nn.ReLU(), nn.Conv2d(4, 3, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
        return Halves(body, nn.Linear(12, classes))


@dataclass(frozen=True)
class FrozenHead(Model):
    """The last layer is frozen."""

    def build(self, image: Shape, classes: int, norm: Norm, bias: bool) -> nn.Module:
        head = nn.Linear(5, classes)
        head.requires_grad_(False)
        return Halves(nn.Sequential(nn.Flatten(), nn.Linear(image[0] * image[1] * image[2], 5)), head)


class Counting(nn.Module):
    """Keeps an integer, which each batch lowers by 1, and booleans: whether an input was above 0.99, and above 1."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("lowest", torch.zeros((), dtype=torch.int32))
        self.register_buffer("seen", torch.zeros(2, dtype=torch.bool))
        self.lowest: Tensor
        self.seen: Tensor

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.lowest.sub_(1)
            self.seen.logical_or_(torch.stack([(x.detach() > 0.99).any(), (x.detach() > 1).any()]))
        return x


@dataclass(frozen=True)
class BatchNormCnn(Model):
    """Convolution and dense layer with torch's batch normalization; ``momentum`` None: a cumulative mean."""

    momentum: float | None = 0.1

    def build(self, image: Shape, classes: int, norm: Norm, bias: bool) -> nn.Module:
        first = [Counting(), nn.Conv2d(image[0], 4, 3), nn.BatchNorm2d(4, momentum=self.momentum), nn.ReLU()]
        last = [nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 6), nn.BatchNorm1d(6), nn.ReLU()]
        return Halves(nn.Sequential(*first, *last), nn.Linear(6, classes))


@dataclass(frozen=True)
class Encoder(Model):
    """A transformer encoder over the rows of an image, and one dropout layer that is used twice."""

    dropout: float = 0.25

    def build(self, image: Shape, classes: int, norm: Norm, bias: bool) -> nn.Module:
        dropout = self.dropout

        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.embedding, self.twice = nn.Linear(image[2], 8), nn.Dropout(dropout)
                self.encoder = nn.TransformerEncoderLayer(8, 2, 12, dropout=dropout, batch_first=True)
                self.head = nn.Linear(8, classes)

            def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
                x = self.twice(self.embedding(images[:, 0]))
                features = self.twice(self.encoder(x).mean(1))
                return features, self.head(features)

        return Net()


@dataclass(frozen=True)
class FunctionalDropout(Model):
    """Drops by a function, whose masks only torch's default generator knows."""

    def build(self, image: Shape, classes: int, norm: Norm, bias: bool) -> nn.Module:
        class Dropping(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                return nn.functional.dropout(x, 0.5, training=self.training)

        body = nn.Sequential(nn.Flatten(), nn.Linear(image[0] * image[1] * image[2], 6), Dropping())
        return Halves(body, nn.Linear(6, classes))


@dataclass(frozen=True)
class ReadingModel(Model):
    """Branches on a value, which a stack of clients has several of."""

    def build(self, image: Shape, classes: int, norm: Norm, bias: bool) -> nn.Module:
        class Reading(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                return x if float(x.sum()) > 0 else -x

        body = nn.Sequential(nn.Flatten(), Reading(), nn.Linear(image[0] * image[1] * image[2], 6))
        return Halves(body, nn.Linear(6, classes))


#: By the names under which ``toys`` knows them.
OWN_MODELS: dict[str, Model] = {
    "pretrained": Pretrained(),
    "thawed": Pretrained(thawed=True),
    "frozen-cnn": FrozenCnn(),
    "bn-cnn": BatchNormCnn(),
    "cumulative-bn-cnn": BatchNormCnn(momentum=None),
    "encoder": Encoder(),
    "encoder-without": Encoder(dropout=0.0),
    "frozen-head": FrozenHead(),
}
