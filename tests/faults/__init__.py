"""Fault injection with real processes: what survives kill -9, and what is repeated after it: nothing finished."""
