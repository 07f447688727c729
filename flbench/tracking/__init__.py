"""Mirror the store to trackers (W&B, TensorBoard, those of plug-ins), in a separate process.

The store holds all results: any run can be sent again from it, in full and under the same id. ``sink`` is the interface
of trackers, ``trackers`` lists those of flbench, and ``wandb_sink`` and ``tensorboard_sink`` send to them; ``mode``
decides whether and how W&B is used. ``jobs`` collects runs; ``run_view`` and ``sweep_view`` build what is shown;
``mirror`` decides what to send and when, and records what was sent; ``sync`` executes one job; ``process`` starts the
mirror next to a sweep. Only ``mode`` and the sinks import the packages of trackers.
"""
