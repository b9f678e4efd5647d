"""Bodies of ops that stay one op, such as a `shard_map`.

In: the model of a body, on a mesh of one device.
Out: the work of the op on its devices, and the memory that it holds.
Entry: `planner.pricing.bodies.body_costs.body_cost`.
"""
