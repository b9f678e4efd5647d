"""Emission: constraints, loops and compiler options that the planner writes because of a compiler.

In: a platform, or the message of a failed compile.
Out: compiler options, and passes that say how a plan is emitted.
Entry: `planner.compiler.emission.options`.
"""
