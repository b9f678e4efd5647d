"""Lower bounds: messages, and prices of memory rows."""
