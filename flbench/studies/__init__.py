"""Experiments about the why: random and trained networks whose sharpness and ranks the papers predict."""
