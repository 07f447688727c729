"""Data: image sets and their decoded cache, partitions among clients, and batches."""
