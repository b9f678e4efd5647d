"""Which form of the program is planned. In: a session. Out: the best plans of the form that is best: what is saved, what is
computed again, how many microbatches."""
