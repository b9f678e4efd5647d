"""Several programs on the same arrays. In: calls by name. Out: a plan of each, on one mesh, and what holds of them all."""
