"""The page of a plan: takes a decision and data of its program, gives HTML that needs nothing beside itself."""
