"""Data: where image sets come from, their decoded cache, and how their samples meet clients."""
