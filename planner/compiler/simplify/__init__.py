"""Simplification: common subexpressions, conversions of types, annotations that lower to nothing."""
