"""Rank collapse of deep networks at random initialization (Daneshmand et al. 2020)."""

#: How claims cite the paper.
PAPER = "Daneshmand et al. 2020"
