"""The command line: takes words, gives files and tables."""
