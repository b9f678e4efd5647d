"""Which passes of compilers does the planner model? Writes `docs/compiler_passes.md` from the table of every target.

    python -m benchmarks.pass_page [--check]

`--check` writes nothing, and exits with 1 where the page is not what the tables say.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from planner.compiler.model import Pass
from planner.compiler.targets.table import COMPILERS

PAGE = Path(__file__).resolve().parent.parent / "docs" / "compiler_passes.md"
HEAD = """# The compiler passes that are modelled

Made by `python -m benchmarks.pass_page` from the tables in `planner/compiler/targets`; do not edit. Passes have the names
under which XLA has them, where it does. "emission" is what the planner writes into programs because of a compiler.
"""


def rows(phase: str) -> Iterator[str]:
    """The lines of the passes of a phase, in the order in which the targets have them."""
    found: dict[str, Pass] = {}
    for compiler in COMPILERS.values():
        found |= {one.name: one for one in compiler.passes if one.phase == phase}
    for name, one in found.items():
        platforms = ", ".join(platform.upper() for platform, compiler in COMPILERS.items() if compiler.runs(one.name))
        source = f"; `{one.evidence.source}`" if one.evidence.source else ""
        yield f"| {name} | {platforms} | {one.does} | {one.evidence.release}: {one.evidence.seen}{source} |"


def page() -> str:
    """The page."""
    phases = dict.fromkeys(one.phase for compiler in COMPILERS.values() for one in compiler.passes)
    lines = [HEAD]
    for phase in phases:
        lines += [f"## {phase.capitalize()}", "", "| pass | on | what it does | seen in |", "|---|---|---|---|"]
        lines += [*rows(phase), ""]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    if parser.parse_args().check:
        sys.exit(PAGE.read_text(encoding="utf-8") != page())
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
