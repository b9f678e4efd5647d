"""Plans in files. In: a decision. Out: JSON, read strictly, and a plan when it is bound to its function again."""
