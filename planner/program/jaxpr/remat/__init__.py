"""Saved and recomputed values: those that cross from the forward to the backward pass, and programs that save others."""
