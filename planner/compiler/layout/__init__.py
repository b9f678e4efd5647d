"""Layout assignment.

In: tensors.
Out: the order and padding of their dims in memory, and the copies that this costs.
"""
