"""Mistakes a user can mend: shown as one message, never as a traceback."""

from __future__ import annotations


class UserError(Exception):
    """Something the user can put right; the command line prints the message and exits with ``exit_code``."""

    exit_code = 2


class DataMissing(UserError):
    """A data set's files are not there; the message says what to put where and which command fetches it."""


class StoreUnusable(UserError):
    """The store cannot be read or written, or was written by a newer flbench."""

    exit_code = 4
