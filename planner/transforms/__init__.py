"""Program variants.

In: a program and a `Form`. Out: a program with the same results, in microbatches or with other values saved.
"""
