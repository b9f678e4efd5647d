"""Which passes of compilers does the planner model? Writes `docs/compiler_passes.md`.

It is made of the table of every target, of the probes and what became of them (`make probes`), and of what each pass is
worth (`benchmarks/ablation.py`).

    python -m benchmarks.pass_page [--check]

`--check` writes nothing, and exits with 1 where the page is not what the tables say.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.ablation import FIGURES, cell, gains
from benchmarks.ablation import RESULTS as ABLATION
from planner.compiler.model import Pass, PassName
from planner.compiler.targets.table import COMPILERS
from tests.compiler.probes.run import RESULTS as OUTCOMES
from tests.compiler.probes.table import PROBES, UNPROBED

PAGE = Path(__file__).resolve().parent.parent / "docs" / "compiler_passes.md"
HEAD = """# The compiler passes that are modelled

Made by `python -m benchmarks.pass_page` from the tables in `planner/compiler/targets`; do not edit. Passes have the names
under which XLA has them, where it does. "emission" is what the planner writes into programs because of a compiler. A probe
is a tiny program whose compilation shows the behaviour. `make probes` compiles all of them with the installed
compilers, and the page says what became of them.
"""
WORTH = """## What each pass is worth

Made by `python -m benchmarks.ablation`: plans of programs of the fidelity suite, and of small ones beside it, priced with
and without each pass, beside what the compilers for {topologies} make of them. A gain is the error of the prediction
without the pass less that with it, in percent, as a mean over the plans whose figure the pass changes; their number is in
brackets. A negative gain is a loss. Passes that change nothing in these programs are not in the table.

| pass | on | seconds | peak | collectives |
|---|---|---|---|---|"""


def rows(phase: str) -> Iterator[str]:
    """The lines of the passes of a phase, in the order in which the targets have them."""
    found: dict[str, Pass] = {}
    for compiler in COMPILERS.values():
        found |= {one.name: one for one in compiler.passes if one.phase == phase}
    outcomes = json.loads(OUTCOMES.read_text(encoding="utf-8"))["probes"]
    for name, one in found.items():
        platforms = ", ".join(platform.upper() for platform, compiler in COMPILERS.items() if compiler.runs(one.name))
        source = f"; `{one.evidence.source}`" if one.evidence.source else ""
        until = f", until {one.evidence.until}" if one.evidence.until else ""
        seen = f"{one.evidence.release}{' and later' if one.evidence.since else until}: {one.evidence.seen}{source}"
        yield f"| {name} | {platforms} | {one.does} | {seen} | {probe_text(one.name, outcomes)} |"


def probe_text(name: PassName, outcomes: Sequence[Mapping[str, str]]) -> str:
    """What the probes of a pass show and what became of them by platform, or why there are none."""
    if name in UNPROBED:
        return f"none: {UNPROBED[name]}"
    own = [probe for probe in PROBES if probe.of == name]
    became = {(row["pass"], row["target"]): row["outcome"].partition(":")[0] for row in outcomes}
    text: dict[str, list[str]] = {}
    for probe in own:
        text.setdefault(became.get((name, probe.topology), "not run"), []).append(probe.platform.upper())
    notes = "; ".join(f"{', '.join(platforms)} {outcome}" for outcome, platforms in text.items())
    return f"{'; or '.join(dict.fromkeys(probe.shows for probe in own))} ({notes})"


def worth() -> Iterator[str]:
    """The section on what each pass is worth."""
    rows = json.loads(ABLATION.read_text(encoding="utf-8"))["rows"]
    yield WORTH.format(topologies=", ".join(dict.fromkeys(row["topology"] for row in rows)))
    for platform in ("tpu", "gpu"):
        for one in COMPILERS[platform].passes:
            found = gains(rows, platform, one.name)
            if any(found.values()):
                yield f"| {one.name} | {platform.upper()} | {' | '.join(cell(found[of]) for of in FIGURES)} |"


def page() -> str:
    """The page."""
    phases = dict.fromkeys(one.phase for compiler in COMPILERS.values() for one in compiler.passes)
    lines = [HEAD]
    for phase in phases:
        lines += [
            f"## {phase.capitalize()}",
            "",
            "| pass | on | what it does | seen in | probe |",
            "|---|---|---|---|---|",
        ]
        lines += [*rows(phase), ""]
    return "\n".join([*lines, *worth(), ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    if parser.parse_args().check:
        sys.exit(PAGE.read_text(encoding="utf-8") != page())
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
