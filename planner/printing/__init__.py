"""What people read, wherever they read it.

In: paragraphs and tables.
Out: the same as text, in the width and colours of a terminal, and as HTML for a cell of a notebook.
Entry: `planner.printing.printed.Printed`.
"""
