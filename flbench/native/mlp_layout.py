"""Where the functions of ``mlp`` find their arguments: whole numbers of 64 bits, most of them addresses."""

from __future__ import annotations

from enum import IntEnum


class Operation(IntEnum):
    """What to do with each client."""

    FORWARD = 0  #: compute the activations of one batch
    LOSS = 1  #: compute the loss of its logits, and their gradient
    BACKWARD = 2  #: compute the gradient of the parameters from that of the logits
    TRAIN = 3  #: take local steps of plain SGD


class Field(IntEnum):
    """The numbers of a stack, which come first."""

    OPERATION = 0
    CLIENTS = 1
    LAYERS = 2
    BATCH = 3
    ROW = 4  #: floats from one neuron's activations to the next one's
    INPUTS = 5  #: D of a sample
    CLASSES = 6
    MEMORY = 7  #: address of the activations of the first client
    CLIENT = 8  #: bytes to those of the next one
    IMAGES = 9  #: address of the samples, floats or bytes
    ARE_BYTES = 10
    SCALE = 11  #: address of three floats: the byte that means 1, then mean and deviation of the input
    ROWS = 12  #: address of the rows (N, E, B) of the samples of each batch
    LABELS = 13  #: address of the label of each row
    SIZES = 14  #: address of the samples (N, E) of each batch that count; 0: all
    STEPS = 15  #: E
    TAKEN = 16  #: address of the number of steps (N,) that each client takes
    RATES = 17  #: address of the learning rate (N,) of each client
    LOSSES = 18  #: address of the loss (N,), of local steps the sum of their losses
    SPARE = 19  #: address of the gradients and one layer's output as rows of samples
    OF_LOGITS = 20  #: address of the gradient of the logits (N, Y, ROW)
    OF_FEATURES = 21  #: address of that of the features (N, D, ROW) without the part from the logits; 0: none
    FEATURES = 22  #: number of the layers before the features
    WIDEST = 23  #: floats of the largest activations
    CONSTANTS = 24  #: address of 16 zeros, then as many ones
    OF_IMAGES = 25  #: address of the gradient of the samples (N, D, ROW); 0: not computed


class Part(IntEnum):
    """The numbers of a layer."""

    KIND = 0  #: ``Kind``
    RELU = 1  #: whether ReLU comes after it
    INPUTS = 2
    OUTPUTS = 3
    Y = 4  #: bytes from a client's memory to its output
    WEIGHT = 5  #: address of the weights of the first client, or the gains; 0: none
    BIAS = 6
    OF_WEIGHT = 7  #: address of their gradient; in local steps that of the weights, which move at once
    OF_BIAS = 8
    GROUPS = 9  #: of a normalization: groups of neurons of which each has statistics of its own
    CENTRED = 10  #: whether their mean is subtracted
    NUMBER = 11  #: address of each client's ``eps``, or factor
    NORMALIZED = 12  #: bytes from a client's memory to the output before gains, then the factors (groups, ROW or 1)
    RUNNING_MEAN = 13  #: address of the running statistics of the first client, of ``Kind.BATCH``
    RUNNING_VAR = 14
    MOMENTUM = 15  #: address of the number by which they move; 0: they normalize, as in evaluation


class Kind(IntEnum):
    """Of a layer."""

    DENSE = 0
    CENTRED = 1  #: x - mean
    VARIANCE = 2  #: x / sqrt(mean(x^2) + eps), x centred or not
    LENGTH = 3  #: sqrt(d) x / max(||x||, eps)
    FACTOR = 4  #: x times a constant
    BATCH = 5  #: as ``VARIANCE`` over the samples of a batch, too; each channel or neuron is a group
