"""What does the plan of Llama 3 8B on 256 chips look like? Writes its page, `docs/llama_8b.html`.

    python -m benchmarks.plan_page

As its compiler's check would take minutes for this size, the plan is not compiled, and its page says so.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import planner
from benchmarks.suite import PROGRAMS
from cost_models import parse_topology

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    """Plans a program of the suite and writes its page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--program", default="llama 8B", choices=tuple(PROGRAMS), help="of the suite")
    parser.add_argument("--topology", default="v5e:16x16", help="default: %(default)s")
    parser.add_argument(
        "-o", "--output", type=Path, default=ROOT / "docs" / "llama_8b.html", help="default: %(default)s"
    )
    arguments = parser.parse_args()
    model = PROGRAMS[arguments.program].build(parse_topology(arguments.topology))
    plan = planner.plan(
        model.fn,
        model.args,
        topology=arguments.topology,
        donate_argnums=model.donate_argnums,
        options=planner.Options(check="never", remat="as written", microbatches=1, progress=print),
    )
    plan.report(arguments.output)
    print(plan)
    print(f"wrote {arguments.output}")


if __name__ == "__main__":
    main()
