"""The machine that is planned for.

In: devices, or the name of a topology.
Out: a target, where meshes lie on it, and the processes that own it.
Entry: `planner.machine.target.resolve`.
"""
