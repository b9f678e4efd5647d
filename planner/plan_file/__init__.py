"""Plan files. In: a decision. Out: JSON, read strictly."""
