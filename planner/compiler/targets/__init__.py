"""The compiler of each platform: a literal tuple of passes, and its limits on each chip.

In: a chip.
Out: its `CompilerModel`.
Entry: `planner.compiler.targets.table.compiler_of`.
"""
