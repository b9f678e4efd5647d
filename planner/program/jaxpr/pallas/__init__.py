"""Pallas kernels: which axes of their grids may be split, and what they work, read off their index maps and bodies."""
