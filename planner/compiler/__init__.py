"""A model of what the compilers of TPUs and GPUs do to a program, for any mesh.

In: the op graph and its decisions. Out: kernels, layouts, live ranges, copies and collectives.
"""
