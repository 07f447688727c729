"""Measure the engine's speed: its executors, fused runs and plain PyTorch loops in turns, and the machine's peak."""
