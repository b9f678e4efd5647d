"""Reports. In: decisions, and problems of their programs. Out: one record, `PlanReport`, as text, JSON and HTML."""
