"""Microbatches, written.

In: a jaxpr and where its batch is.
Out: the jaxpr as a loop over parts of its batch.
Entry: `planner.program.jaxpr.microbatch.loop.microbatched`.
"""
