"""A fuzzer of the command line. It mutates sweep files, options, arguments, exported files and stores.

For every input a command must end within its time limit, with exit code 0 to 4 and without a traceback. A seed and a
number define a case: ``python -m tests.fuzz --seed 0 --only 17`` runs one case again.
"""
