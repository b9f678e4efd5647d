"""Forms: from a program and a `Form` to the program that computes the same in that form."""
