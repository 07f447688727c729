"""The choices that fields of studies and their networks share, each declared once."""

from __future__ import annotations

from typing import Literal

#: Precision of a study.
Arithmetic = Literal["fp64", "fp32"]

#: Activation functions of the sharpness paper's networks.
Activation = Literal["relu", "tanh", "linear", "erf", "sigmoid", "leaky-relu"]

#: Where and how the sharpness paper's networks normalize pre-activations: their mean over samples subtracted
#: (``mean``), also divided by their standard deviation over samples (``bn``), or both over units (``ln``); in the
#: readout (``last``), in the hidden layers (``middle``), or everywhere.
Normalized = Literal["none", "mean-last", "mean-middle", "bn-last", "bn-middle", "bn-all", "ln-all"]

#: Normalization of the rows of ranks over depth: none, division by their root mean square over samples (eq. 4: not
#: centred), or batch norm as networks have it (centred). For ReLU networks the last two differ.
RowNorm = Literal["none", "bn-rms", "bn"]

#: Normalization and initial weights of deep MLPs.
DeepNorm = Literal["none", "bn"]
Init = Literal["torch", "he", "glorot"]

#: How their ranks are raised before training, as the poster's text says or as the authors' code does; the optimizer.
PretrainVariant = Literal["text", "code"]
Optimizer = Literal["adam", "sgd"]
