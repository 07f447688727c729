"""Normalizations as data: which layer sits at which site of a network.

At each :class:`~flbench.models.sites.Site` a norm returns a torch module or None, so a norm decides where it sits, and
models need no copy for each norm. The modules themselves are in ``flbench.models.norm_layers``.

Notation: x is the activation of one sample, over all its elements (C, H, W) or (D,); d is their number; mu and sigma
are mean and (biased) standard deviation over them. The label-skew paper (Zhang et al. 2024, arXiv 2308.09565) calls
n(x) = sqrt(d) x / ||x|| scale normalization, n_MV(x) = (x - mu) / sigma mean-variance normalization (eq. 3) and
s(x) = x - mu the shift.
"""

from flbench.models.norms.base import EPS, Norm

__all__ = ["EPS", "Norm"]
