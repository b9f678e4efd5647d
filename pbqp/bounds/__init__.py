"""Lower bounds.

In: a problem.
Out: messages, and prices of memory rows: no assignment costs less.
"""
