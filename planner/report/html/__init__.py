"""The page of a plan.

In: its report.
Out: one HTML file that needs no network, from the templates of this package.
Entry: `planner.report.html.render`.
"""
