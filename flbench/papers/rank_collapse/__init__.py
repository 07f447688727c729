"""Rank collapse of deep networks at random initialization (Daneshmand et al. 2020)."""
