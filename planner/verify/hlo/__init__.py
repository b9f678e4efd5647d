"""Compiled programs: takes HLO text, gives its collectives and memory."""
