"""Placements that a program names itself, read, taken out or laid on: constraints, `shard_map`s, Explicit types."""
