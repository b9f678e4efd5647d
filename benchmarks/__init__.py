"""Benchmarks of the planner: the programs it is tried on, and scripts whose names are questions."""
