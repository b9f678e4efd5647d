"""Reports. In: decisions. Out: text, tables and drawings for people."""
