"""Tiles of a TPU's memory."""

from __future__ import annotations

TILE_ROWS, TILE_LANES = 8, 128
"""A tile of words of 32 bits, in which TPUs keep the last two dims of an array; narrower types take several in one."""
