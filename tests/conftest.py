"""What holds for all tests."""

from __future__ import annotations

import os

# Whoever runs the tests may be logged in to W&B: no sweep of a test shall be mirrored there.
os.environ["WANDB_MODE"] = "disabled"
