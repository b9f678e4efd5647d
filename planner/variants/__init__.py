"""The search over variants of a program.

In: the problem of the program as written.
Out: the best plans of the best variant: saved values and microbatches.
Entry: `planner.variants.variant_search`.
"""
