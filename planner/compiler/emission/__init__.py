"""Emission: what the planner writes into programs, and into compiler options, because of a compiler."""
