"""A model of what the target's compiler does to a program, for any mesh.

In: the op graph and its decisions.
Out: kernels, layouts, live ranges, copies and collectives, in the order of the compiler's passes.
Entry: `planner.compiler.analysis.model_of`.
"""
