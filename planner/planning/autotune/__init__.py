"""Autotuning: prices corrected by what compilers or devices report.

In: a problem and its first plans.
Out: the best of the plans that were compiled or run.
Entry: `planner.planning.autotune.rounds.refine`.
"""
