"""Plans as users hold them: takes a decision and a program, gives what runs, prints, explains and keeps it."""
