"""Reports for people and for other programs.

In: decisions, and problems of their programs.
Out: one record, `PlanReport`, as text, JSON and HTML.
Entry: `planner.report.text.plan_parts`.
"""
