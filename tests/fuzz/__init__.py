"""A fuzzer of the command line: mutated sweeps, options, arguments, exported files and stores.

Whatever is put in, a command ends in time, with exit code 0 to 4 and no traceback. Every case follows from a seed and a
number: ``python -m tests.fuzz --seed 0 --only 17`` runs one again and prints what it puts in.
"""
