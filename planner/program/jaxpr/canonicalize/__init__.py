"""Programs rewritten to one form, with the same results, before they are planned."""
