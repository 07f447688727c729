"""Download data sets with torchvision, which knows their addresses and checksums."""

from __future__ import annotations

from pathlib import Path

from flbench.data.datasets import Dataset, data_root
from flbench.data.layouts.digits import Digits
from flbench.errors import UserError


def download(dataset: Dataset, root: Path | None = None) -> Path:
    """Return the folder of a data set below the data root, after downloading into it what is not there.

    Raises:
        UserError: torchvision does not have the set, or it could not be fetched or written.
    """
    folder = data_root(root) / dataset.name
    if dataset.torchvision is None:
        reason = "torchvision does not have it; put its files into its folder yourself ('flbench data list' says where)"
        if dataset.counts is None:
            reason = "it consists of the files that you name"
        elif isinstance(dataset.layouts[0], Digits):
            reason = "it is part of scikit-learn, no download is needed"
        raise UserError(f"{dataset.name} cannot be downloaded: {reason}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror}; name another folder by --data") from error
    import torchvision.datasets

    try:
        getattr(torchvision.datasets, dataset.torchvision)(root=str(folder), download=True)
    except Exception as error:  # torchvision passes on any error of urllib, tarfile or the disk
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(
            f"cannot download {dataset.name} into {folder}: {reason}\n"
            f"Without internet: run 'flbench data download {dataset.name}' on a machine that has it, "
            f"and copy its folder {dataset.name}/ to {folder}."
        ) from error
    return folder
