"""Fusion.

In: ops and their layouts.
Out: which ops share a kernel, what is materialized, what each kernel reads and writes.
"""
