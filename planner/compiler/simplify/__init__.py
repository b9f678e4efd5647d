"""Simplification.

In: ops as traced.
Out: common subexpressions, converts that move, shardings that lower to nothing.
"""
