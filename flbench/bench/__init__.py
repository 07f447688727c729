"""Time an experiment by flbench and by careful plain PyTorch loops, in turns."""
