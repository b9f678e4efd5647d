"""Methods that only seek good choices."""
