"""Rules between the data set, the model and what is chosen for its network, as checks of ``config.training`` use them.

A data set whose files alone define its images passes them here, and again in ``data.preflight``.
"""

from __future__ import annotations

from typing import Any, cast

from flbench.config.trained_parts import ALL


def image_fits(dataset: Any, model: Any) -> str | None:
    """Return why the images do not fit the model, or None."""
    problem = model.problem(dataset.image) if dataset.image is not None else None
    return f"{model.label()} on {dataset.label()}: {problem}" if problem else None


def augmented_are_images(dataset: Any, augment: str) -> str | None:
    """Return why an augmentation cannot move the samples of a data set."""
    if augment == "none" or dataset.image is None or len(dataset.image) == 3:
        return None
    return f"{augment} moves the pixels of images, and {dataset.label()} has samples of {dataset.image}; use none"


def norm_fits(dataset: Any, model: Any, norm: Any) -> str | None:
    """Return why the norm does not fit the network, or None."""
    if dataset.image is None or model.problem(dataset.image):
        return None
    problem = model.norm_problem(norm, dataset.image, dataset.classes or 2)
    return f"{norm.label()} in {model.label()}: {problem}" if problem else None


def norm_in_network(dataset: Any, model: Any, norm: Any) -> Any:
    """Return the norm under whose identity equal computations are hashed."""
    return norm if dataset.image is None else norm.canonical_among(model.sites(dataset.image))


def head_fits(dataset: Any, model: Any, head: Any) -> str | None:
    """Return why the head does not fit the network, or None."""
    if dataset.image is None or model.problem(dataset.image):
        return None
    problem = model.head_problem(head, dataset.image, dataset.classes or 2)
    return f"{head.label()} on {model.label()}: {problem}" if problem else None


def head_sees_lengths(norm: Any, head: Any) -> str | None:
    """Return why a norm that only scales features is nothing before this head, or None."""
    if not (norm.only_scales_features and head.unit_features):
        return None
    return (
        f"{norm.label()} only scales the features, and head: {head.label()} divides them by their norm; "
        "use norm: none, whose logits are the same"
    )


def trained_parts_exist(dataset: Any, model: Any, norm: Any, head: Any, bias: bool, train: str) -> str | None:
    """Return why the parts that ``train`` names cannot be trained, or None."""
    if train == ALL or dataset.image is None or model.problem(dataset.image):
        return None
    return cast(str | None, model.train_problem(train, dataset.image, dataset.classes or 2, norm, bias, head))
