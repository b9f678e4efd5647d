"""The search over variants of a program.

In: a problem. Out: the best plans of the best variant: saved values and microbatches.
"""
