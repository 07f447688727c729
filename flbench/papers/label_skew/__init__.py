"""Label skew: what normalization and method survive when every client holds few classes (the label-skew paper)."""
