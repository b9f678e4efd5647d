"""Do the installed compilers still behave as the passes say? Compiles every probe and says what has changed.

    python -m tests.compiler.probes.run [--only NAME,NAME] [--platform tpu,gpu,cpu] [--out FILE.json]

Exits with 1 where a behaviour has changed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from benchmarks.stamp import stamp
from planner.compiler.release import installed_release
from planner.compiler.targets.table import COMPILERS, is_of
from planner.errors import CompileError
from tests.compiler.probes.probe import Probe
from tests.compiler.probes.table import PROBES

RESULTS = Path(__file__).resolve().parents[3] / "benchmarks" / "results" / "probes.json"
AS_MODELLED, CHANGED, NOT_INSTALLED = "as modelled", "changed", "not installed"


def outcome(probe: Probe) -> str:
    """What the installed compiler makes of a probe; of a pass of other releases, whether it is not seen."""
    if probe.why_not():
        return NOT_INSTALLED
    (of,) = (one for one in COMPILERS[probe.platform].passes if one.name == probe.of)
    try:
        seen = probe.seen(*probe.compiled())
        return AS_MODELLED if seen == is_of(of, installed_release(probe.platform)) else CHANGED
    except CompileError as error:
        return f"{CHANGED}: {error}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="names of passes, separated by commas; default all")
    parser.add_argument("--platform", default="tpu,gpu,cpu")
    parser.add_argument("--out", type=Path, help=f"a file that gets the outcomes, such as {RESULTS.name}")
    options = parser.parse_args()
    rows: list[dict[str, str]] = []
    for probe in PROBES:
        if probe.platform not in options.platform.split(",") or (
            options.only and probe.of not in options.only.split(",")
        ):
            continue
        release = installed_release(probe.platform) or ""
        row = {"pass": probe.of, "target": probe.topology, "release": release, "outcome": outcome(probe)}
        rows.append(row | {"shows": probe.shows})
        print(f"{probe.of:<32}{probe.topology:<10}{release:<28}{row['outcome']}", flush=True)
    if options.out:
        options.out.write_text(json.dumps({"stamp": stamp(), "probes": rows}, indent=1) + "\n")
    for what in (AS_MODELLED, CHANGED, NOT_INSTALLED):
        print(f"{sum(row['outcome'].startswith(what) for row in rows)} {what}")
    sys.exit(any(row["outcome"].startswith(CHANGED) for row in rows))


if __name__ == "__main__":
    main()
