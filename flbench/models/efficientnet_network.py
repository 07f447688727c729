"""EfficientNet-Lite0 with the names of the package ``efficientnet-lite-pytorch``, whose weights therefore fit.

Written here because that package draws its masks from torch's global generator; a test compares the two.
"""

from __future__ import annotations

from functools import lru_cache

from torch import Tensor, nn
from torch.nn import functional as F

from flbench.models.body_network import sites_of
from flbench.models.masks import SampleDropout
from flbench.models.sites import Shape, Site

#: Of each group of blocks: repeats, kernel, stride of the first, expansion, channels.
_GROUPS = (
    (1, 3, 1, 1, 16), (2, 3, 2, 6, 24), (2, 5, 2, 6, 40), (3, 3, 2, 6, 80), (3, 5, 1, 6, 112), (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)  # fmt: skip

#: Channels after the first and after the last convolution, and the classes of ImageNet.
_STEM, _FEATURES, _CLASSES = 32, 1280, 1000


class SameConv(nn.Conv2d):
    """A convolution without a bias, padded as TensorFlow's ``SAME``: of an odd padding, the larger part follows."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> None:
        # With stride 1 both sides are padded alike, which the convolution itself can do.
        padding = kernel // 2 if stride == 1 else 0
        super().__init__(inputs, outputs, kernel, stride, padding, groups=groups, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        (kernel, _), (stride, _) = self.kernel_size, self.stride
        if stride > 1:
            missing = [max((-(-side // stride) - 1) * stride + kernel - side, 0) for side in (x.shape[-1], x.shape[-2])]
            x = F.pad(x, [part for one in missing for part in (one // 2, one - one // 2)])
        return super().forward(x)


class Block(nn.Module):
    """An inverted bottleneck: expansion, convolution channel by channel, projection; a shortcut where shapes allow."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int, drop: float) -> None:
        super().__init__()
        inner = inputs * expansion
        if expansion > 1:
            self._expand_conv, self._bn0 = SameConv(inputs, inner, 1), _batch_norm(inner)
        self._depthwise_conv, self._bn1 = SameConv(inner, inner, kernel, stride, groups=inner), _batch_norm(inner)
        self._project_conv, self._bn2 = SameConv(inner, outputs, 1), _batch_norm(outputs)
        self.expands, self.has_shortcut = expansion > 1, stride == 1 and inputs == outputs
        self._swish = nn.ReLU6()
        self._drop = SampleDropout(drop) if drop and self.has_shortcut else nn.Identity()

    def forward(self, x_BCHW: Tensor) -> Tensor:
        x = self._swish(self._bn0(self._expand_conv(x_BCHW))) if self.expands else x_BCHW
        x = self._swish(self._bn1(self._depthwise_conv(x)))
        x = self._bn2(self._project_conv(x))
        out: Tensor = self._drop(x) + x_BCHW if self.has_shortcut else x
        return out


class EfficientNetLite0(nn.Module):
    """images_BCHW to logits of ImageNet's 1,000 classes.

    Args:
        dropout: of the features.
        drop_connect: the probability that a sample skips the last block; it grows linearly from 0 at the first.
    """

    def __init__(self, dropout: float, drop_connect: float) -> None:
        super().__init__()
        self._conv_stem, self._bn0 = SameConv(3, _STEM, 3, stride=2), _batch_norm(_STEM)
        self._blocks = nn.ModuleList()
        channels, blocks = _STEM, sum(group[0] for group in _GROUPS)  # exact: whole numbers
        for repeats, kernel, stride, expansion, outputs in _GROUPS:
            for number in range(repeats):
                drop = drop_connect * len(self._blocks) / blocks
                first = stride if number == 0 else 1
                self._blocks.append(Block(channels, outputs, kernel, first, expansion, drop))
                channels = outputs
        self._conv_head, self._bn1 = SameConv(channels, _FEATURES, 1), _batch_norm(_FEATURES)
        self._swish, self._dropout = nn.ReLU6(), nn.Dropout(dropout) if dropout else nn.Identity()
        self._fc = nn.Linear(_FEATURES, _CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self._swish(self._bn0(self._conv_stem(x)))
        for block in self._blocks:
            x = block(x)
        x = self._swish(self._bn1(self._conv_head(x)))
        logits: Tensor = self._fc(self._dropout(x.mean((-2, -1))))
        return logits


@lru_cache(64)
def sites(label: str, image: Shape, size: int | None, replaced: bool) -> tuple[Site, ...]:
    """Return the places of normalizations, those of the body if they are ``replaced``; builds the network."""
    return sites_of(label, lambda: EfficientNetLite0(0, 0), image, size, replaced)


def _batch_norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01)
