"""The start of the command line, of ``flbench`` and ``python -m flbench``: Ctrl-C ends it quietly while it imports."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; after Ctrl-C the exit code is 130, as that of commands."""
    try:
        from flbench.cli import main as command_line

        command_line()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
