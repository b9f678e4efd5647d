"""Microbatches: a program as a loop over parts of its batch."""
