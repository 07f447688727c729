"""How fast the engine is: its executors, fused runs and plain PyTorch loops, in turns, and the machine's own peak."""
