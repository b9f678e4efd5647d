"""How large are the pages of plans, and how long do they take to write?

    python -m benchmarks.page_size [--only NAME,NAME] [--topology NAME] [--out FILE.json]

Plans programs of the suite at real size, without checks, and writes their pages, with the program and from the plan's file
alone. Reported are bytes, bytes as a web server would send them (gzip), and seconds by the clock and of the processor,
those of pricing alternatives and recipes included. A page above 3 MB, or one that names another address, is an error.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import planner
from benchmarks.stamp import stamp
from benchmarks.suite import PROGRAMS
from cost_models import parse_topology

RESULTS = Path(__file__).resolve().parent / "results" / "page_size.json"
MOST_BYTES = 3_000_000
ONLY = ("llama 8B", "t5 large", "decode 8B b128", "gpt unrolled x8")
_OUTSIDE = re.compile(r"""(?:src|href|action)=["'](?!data:|#)|url\(|@import""")


def measured(name: str, topology: str) -> dict[str, Any]:
    """The row of one program."""
    model = PROGRAMS[name].build(parse_topology(topology))
    plan = planner.plan(
        model.fn,
        model.args,
        topology=topology,
        donate_argnums=model.donate_argnums,
        options=planner.Options(check="never", remat="as written", microbatches=1),
    )
    with tempfile.TemporaryDirectory() as folder:
        page, bare, saved = (Path(folder) / file for file in ("page.html", "bare.html", "plan.json"))
        clock, processor = time.perf_counter(), time.process_time()
        plan.report(page)
        clock, processor = time.perf_counter() - clock, time.process_time() - processor
        plan.save(saved)
        planner.load(saved).report(bare)
        written = page.read_bytes()
        return {
            "name": name,
            "bytes": len(written),
            "gzip_bytes": len(gzip.compress(written)),
            "file_alone_bytes": bare.stat().st_size,
            "addresses": len(_OUTSIDE.findall(written.decode())),
            "clock_seconds": clock,
            "processor_seconds": processor,
            "nodes": plan.graph.number_of_nodes(),
        }


def main() -> None:
    """Measures, prints a table, writes the JSON, and exits with 1 where a page is too large or names an address."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default=",".join(ONLY), help="names of the suite. Default: %(default)s")
    parser.add_argument("--topology", default="v5e:16x16", help="default: %(default)s")
    parser.add_argument("--out", type=Path, default=RESULTS, help="default: %(default)s")
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    print(f"{'':20}{'kB':>8}{'gzip kB':>9}{'file alone kB':>15}{'clock s':>9}{'processor s':>13}")
    for name in given.only.split(","):
        row = measured(name, given.topology)
        rows.append(row)
        sizes = f"{row['bytes'] / 1e3:8.0f}{row['gzip_bytes'] / 1e3:9.0f}{row['file_alone_bytes'] / 1e3:15.0f}"
        print(f"{name:20}{sizes}{row['clock_seconds']:9.1f}{row['processor_seconds']:13.1f}", flush=True)
    given.out.write_text(json.dumps({**stamp(), "topology": given.topology, "pages": rows}, indent=1) + "\n")
    if any(row["bytes"] > MOST_BYTES or row["addresses"] for row in rows):
        sys.exit("a page is above 3 MB, or names another address")


if __name__ == "__main__":
    main()
