"""Reports for people and for other programs.

In: decisions and their predictions.
Out: text, tables, JSON.
Entry: `planner.report.text.describe`.
"""
