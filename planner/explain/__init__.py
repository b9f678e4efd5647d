"""Explanations: takes a choice, gives the op graph of a program and the alternatives of a tensor."""
