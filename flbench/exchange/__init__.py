"""Runs that travel: exported files, contributions, their checks, and their execution again.

Everything here may come from a stranger. Nothing in a file is executed, no name in it becomes a path, and what it
unpacks to is bounded before it is read.
"""
