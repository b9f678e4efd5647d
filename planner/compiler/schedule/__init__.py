"""Scheduling.

In: kernels.
Out: when ops run, and the live ranges of tensors.
"""
