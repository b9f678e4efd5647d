"""Buffer assignment: tensors in memory, and the copies where results cannot overwrite operands."""
