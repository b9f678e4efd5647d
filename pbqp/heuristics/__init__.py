"""Methods that only look for good assignments.

In: a problem.
Out: an assignment, without a bound.
"""
