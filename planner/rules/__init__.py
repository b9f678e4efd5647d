"""Factor rules of leaf primitives (which dims of an op may be split together, and at what price), and their traits."""

from planner.rules.primitives import PRIMITIVES, kinds_where, rule_of, slides, slides_of, traits
from planner.rules.row import Primitive

__all__ = ["PRIMITIVES", "Primitive", "kinds_where", "rule_of", "slides", "slides_of", "traits"]
