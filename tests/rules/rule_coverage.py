"""Which share of the primitives with a rule does each of the three tests of rules cover?

    python -m tests.rules.rule_coverage

Prints the number of primitives for which some case is tested by its text, against Shardy's registry, and by its meaning
(run on parts and put together again), those that two or three of the tests cover, and the names that none does.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from planner.rules.choose import shardy_rule
from planner.rules.primitives import kinds_where
from tests.rules import rule_cases, test_rules_meaning, test_rules_shardy


def covered() -> Mapping[str, frozenset[str]]:
    """The primitives that each test covers with at least one case."""
    cases = [name for name, *_ in rule_cases.CASES]
    left_out: Mapping[str, Mapping[str, str]] = {
        "text table": {},
        "Shardy's registry": {n: why for n, why in test_rules_shardy.UNCOMPARED.items() if not _is_composed(n)},
        "meaning": test_rules_meaning.SKIPPED,
    }
    return {
        test: frozenset(name.split()[0] for name in cases if name not in skipped) for test, skipped in left_out.items()
    }


def _is_composed(name: str) -> bool:
    """Whether the ops that a case lowers to have rules of Shardy's that compose to one."""
    _, function, arrays, _ = next(case for case in rule_cases.CASES if case[0] == name)
    equation = rule_cases.equation(name, function, arrays)
    if equation is None:
        return False
    return shardy_rule(equation.primitive, equation.operands, equation.results, equation.params) is not None


def main() -> None:
    """Prints the table."""
    found, kinds_ruled = covered(), sorted(kinds_where(lambda row: row.rule is not None))
    total = len(kinds_ruled)
    for test, kinds in found.items():
        print(f"{test:20} {len(kinds):4} of {total} primitives  {100 * len(kinds) / total:3.0f} %")
    times = {kind: sum(kind in kinds for kinds in found.values()) for kind in kinds_ruled}
    for words, least in (("2 tests or more", 2), ("all 3 tests", 3)):
        count = sum(times[kind] >= least for kind in kinds_ruled)
        print(f"{words:20} {count:4} of {total} primitives  {100 * count / total:3.0f} %")
    print("by none:", ", ".join(kind for kind in kinds_ruled if not times[kind]))


if __name__ == "__main__":
    main()
