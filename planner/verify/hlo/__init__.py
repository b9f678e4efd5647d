"""Compiled programs, read.

In: the text of an HLO module and its schedule.
Out: its collectives, memory, matrix products and seconds.
Entry: `planner.verify.hlo.text.parse_module`.
"""
