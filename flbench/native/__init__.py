"""Functions for the CPU that numba compiles once for a machine, and that later processes load without numba."""
