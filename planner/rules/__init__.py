"""Factor rules of leaf primitives: which dims of an op may be split together, and at what price."""

from planner.rules.families import FAMILIES, FUSIBLE, Family, family
from planner.rules.table import RULES, rule_of

__all__ = ["FAMILIES", "FUSIBLE", "RULES", "Family", "family", "rule_of"]
