"""Programs that answer in place of SLURM's."""

from __future__ import annotations

from pathlib import Path


def program(directory: Path, name: str, body: str) -> None:
    """Put a shell script where a program is looked for."""
    (directory / name).write_text(f"#!/bin/bash\n{body}\n")
    (directory / name).chmod(0o755)


def says(directory: Path, name: str, text: str) -> None:
    """A program that prints a text."""
    program(directory, name, f"cat <<'EOF'\n{text}\nEOF")
