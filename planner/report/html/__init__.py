"""The page of a plan. In: its report. Out: HTML from the templates of this package, which needs nothing beside itself."""
