"""Layouts: the ways in which the files of a data set may be arranged on disk."""
