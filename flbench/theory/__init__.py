"""What the papers predict, as plain functions of numbers and arrays: no networks, no training.

``gaussian``: averages over Gaussian pre-activations; ``order``: mean-field order parameters; ``fisher``: eigenvalues of
the Fisher information and their bounds; ``rank``: ranks of representations; ``fits``: exponents with intervals.
"""
