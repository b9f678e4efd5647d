"""What a person reads of plans. In: decisions. Out: text, tables and drawings."""
