"""Mirror the store to trackers (W&B, TensorBoard, those of plug-ins), in a separate process.

The store holds all results: any run can be sent again from it, in full and under the same id. ``sink`` is the interface
of trackers, ``trackers`` lists those of flbench and decides whether W&B is used, ``wandb_sink`` and
``tensorboard_sink`` send to them. ``jobs`` collects runs; ``run_view`` builds what is shown of a run; ``mirror``
decides what to send and when, and records what was sent; ``sync`` executes one job; ``process`` starts the mirror next
to a sweep. The packages of trackers are imported when they are used.
"""
