"""Collectives as compiled.

In: transfers.
Out: which are combined, reassociated, or overlapped with computing.
"""
