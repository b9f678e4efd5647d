"""Tracing: a function and its arguments made a program: a jaxpr, pytrees, names, and notes for the user."""
