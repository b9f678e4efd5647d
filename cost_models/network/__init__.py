"""Networks: the wires under mesh axes, and the seconds of collectives over them."""
