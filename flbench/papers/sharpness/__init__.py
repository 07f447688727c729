"""Sharpness of random networks, and the learning rates it allows (Karakida et al. 2019, 2021)."""
