"""Runs that others measured and published, as programs to price.

In: `runs.jsonl`, a row per run with its source.
Out: the program of a row, its mesh and its pins.
Entry: `benchmarks.published`.
"""
