"""Program variants.

In: a program and how it is to be computed.
Out: a program with the same results, in microbatches or with other values saved.
Entry: `planner.transforms.apply`.
"""
