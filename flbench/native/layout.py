"""Numbers that compiled functions and their callers share; this module imports nothing."""

#: Samples that lie side by side in memory on every CPU: one register of AVX-512, or several smaller ones.
LANES = 16

#: Rows and columns of all kernels of convolutions; rows and columns of all pooling windows.
KERNEL, POOL = 5, 2

#: Whole numbers that describe a convolution.
LAYER = 16
