"""Factor rules: takes an op, gives which of its dims may be split together, and at what price."""
