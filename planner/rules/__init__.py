"""Factor rules.

In: an op.
Out: which of its dims may be split together, and at what price.
Entry: `planner.rules.choose.op_rule`.
"""
