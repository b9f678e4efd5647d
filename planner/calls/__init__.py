"""Functions that are planned when they are called, as `jax.jit` compiles them.

In: a function, the keywords of `plan`, and calls.
Out: one plan per types of the arguments and static values, and the results of the calls.
Entry: `planner.calls.jit.jit`.
"""
