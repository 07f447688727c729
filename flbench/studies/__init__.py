"""Studies: random and trained networks whose sharpness and ranks the papers predict.

Each kind of study is one file that registers with ``config.KINDS`` and is imported here. Like every module that only
describes experiments, these import torch inside functions only.
"""

# In the order in which commands list them.
# isort: off
from flbench.studies import sharpness, rank, deep
# isort: on

__all__ = ["deep", "rank", "sharpness"]
