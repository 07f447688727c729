"""FedVLS (Guo et al. 2025, arXiv 2401.02329), by the numbers of its table 1 on MNIST."""
