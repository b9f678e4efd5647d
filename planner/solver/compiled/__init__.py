"""The method for large problems, its inner loops compiled."""

COMPILED_CHOICES = 5_000
"""Choices of a problem without rows from which on its messages are compiled: loading what is takes half a second."""
