"""Plans as users hold them.

In: a decision and its program.
Out: an object that runs, prints, explains, verifies and saves it.
Entry: `planner.plans.plan.Plan`.
"""
