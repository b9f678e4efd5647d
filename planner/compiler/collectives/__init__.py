"""Collectives: those that the compiler combines, reassociates or overlaps with computing."""
