"""Emission: takes a choice, gives what is laid on the program and what a call of it will cost."""
