"""The method for large problems, its inner loops compiled."""

COMPILED_CHOICES = 50_000
"""Choices of a problem from which on it is solved compiled: the first time on a machine, compiling takes ten seconds."""
