"""The page of a plan: takes a decision and what its program adds, gives HTML that needs nothing beside itself."""
