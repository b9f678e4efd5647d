"""Buffer assignment.

In: live ranges.
Out: buffers, copies where a result cannot overwrite its operand, and memory spaces.
"""
