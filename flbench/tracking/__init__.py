"""Mirror the store to Weights & Biases, in a separate process.

The store holds all results: any run can be sent again from it, in full and under the same id. ``mode`` decides whether
and how runs are mirrored; ``jobs`` collects them; ``run_view`` and ``sweep_view`` build what W&B shows; ``sync_log``
records what was sent; ``mirror`` decides what to send and when; ``wandb_sink`` sends it; ``sync`` executes one job;
``process`` starts the mirror next to a sweep. Only ``mode`` and ``wandb_sink`` import wandb.
"""
