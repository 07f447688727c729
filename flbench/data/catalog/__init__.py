"""The data sets of flbench, by name, each in a file that registers it; discovered, so that no list names them."""
