"""Verification: takes a plan's promises, gives what the compiled program does beside them."""
