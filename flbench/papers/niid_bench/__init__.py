"""NIID-Bench (Li et al. 2022, arXiv 2102.02079), by the numbers of its reproduction in Flower's baselines."""
