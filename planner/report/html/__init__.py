"""The page of a plan.

In: a decision and figures of its program.
Out: one HTML file that needs no network.
Entry: `planner.report.html.render`.
"""
