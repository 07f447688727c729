"""The store mirrored to Weights & Biases by one process of its own, which nobody waits for.

The store is the truth: what is on W&B can be written anew from it at any time, whole, under the same id. ``modes`` says
whether and how, ``view`` what W&B is told of a run, ``memory`` what it was told already, ``writer`` tells it (the only
module that imports wandb), ``mirror`` decides what is told when, ``beside`` starts it all beside a sweep.
"""
