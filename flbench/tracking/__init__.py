"""Mirror the store to Weights & Biases, in a process of its own.

The store is the truth: any run can be written to W&B again from it, whole, under the same id. ``mode`` decides whether
and how; ``jobs`` collects the runs; ``run_view`` and ``sweep_view`` build what W&B shows; ``sync_log`` records what it
has; ``mirror`` decides what is sent when; ``wandb_sink`` sends it; ``sync`` takes one job from start to end;
``process`` starts all of it next to a sweep. Only ``mode`` and ``wandb_sink`` import wandb.
"""
