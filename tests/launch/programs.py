"""Shell scripts in place of SLURM's programs."""

from __future__ import annotations

from pathlib import Path


def program(directory: Path, name: str, body: str) -> None:
    """Write a shell script as a program of the search path."""
    (directory / name).write_text(f"#!/bin/bash\n{body}\n")
    (directory / name).chmod(0o755)


def says(directory: Path, name: str, text: str) -> None:
    """Write a program that prints a text."""
    program(directory, name, f"cat <<'EOF'\n{text}\nEOF")
