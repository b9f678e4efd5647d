"""Tiles of a TPU's memory and of its matrix unit."""

from __future__ import annotations

MATRIX_LANES = 128
"""Rows and columns of the tile of weights that products of matrices on a TPU are filled up to."""

TILE_ROWS, TILE_LANES = 8, 128
"""A tile of words of 32 bits, in which TPUs keep the last two dims of an array; narrower types take several in one."""
