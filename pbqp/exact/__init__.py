"""Methods that prove their answer.

In: a problem that is small enough.
Out: its optimum: elimination, integer program, brute force.
"""
