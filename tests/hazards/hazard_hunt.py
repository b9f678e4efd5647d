"""The hunt for hazards: `python -m tests.hazards.hazard_hunt --log FILE --output FILE [--only EXPRESSION] ...`.

Every strategy of every case of `hazard_cases` is compiled and run on four meshes, in child processes. What comes out wrong
or dies is printed as it is found. The log takes a line for every case and mesh; those that it holds already are not
tried again, so that a hunt can be continued. The output counts what the log says by primitive, and tells what this JAX
makes of the known hazards. The exit status is 1 where anything was found.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.stamp import stamp
from tests.hazards import hazard_known
from tests.hazards.hazard_cases import all_cases
from tests.hazards.hazard_worker import Tally, Worker

MESHES: tuple[Mapping[str, int], ...] = ({"x": 4, "y": 2}, {"x": 2, "y": 2, "z": 2}, {"x": 2, "y": 4}, {"x": 8})

Job = tuple[str, Mapping[str, int]]
"""A case and a mesh."""


def words(mesh: Mapping[str, int]) -> str:
    """A mesh as written: 4x2."""
    return "x".join(map(str, mesh.values()))


def hunt(jobs: Sequence[Job], *, workers: int, most: int, everything: bool) -> Iterator[tuple[Job, Tally]]:
    """(job, what came of it), in order; `most` strategies of each (0: all), `everything`: known hazards too."""
    free = [Worker() for _ in range(workers)]

    def one(job: Job) -> Tally:
        worker = free.pop()
        try:
            return worker.run(*job, {"most": most, "everything": everything})
        finally:
            free.append(worker)

    with ThreadPoolExecutor(workers) as pool:
        yield from zip(jobs, pool.map(one, jobs), strict=True)
    for worker in free:
        worker.stop()


def main() -> int:
    """Runs the hunt; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--only", default="", help="cases whose name this expression matches")
    parser.add_argument("--meshes", default="", help="such as 4x2,8")
    parser.add_argument("--most", type=int, default=0, help="strategies per case and mesh, drawn at random; 0: all")
    parser.add_argument(
        "--everything", action="store_true", help="known hazards too: nothing is kept from the partitioner"
    )
    parser.add_argument("--workers", type=int, default=1)
    arguments = parser.parse_args()

    wanted = [mesh for mesh in arguments.meshes.split(",") if mesh]
    meshes = [mesh for mesh in MESHES if not wanted or words(mesh) in wanted]
    log: list[dict[str, Any]] = []
    if arguments.log.exists():
        log = [json.loads(line) for line in arguments.log.read_text().splitlines()]
    arguments.log.parent.mkdir(parents=True, exist_ok=True)
    done = {(entry["case"], entry["mesh"]) for entry in log}
    names = [name for name in all_cases() if re.search(arguments.only, name)]
    jobs = [(name, mesh) for mesh in meshes for name in names if (name, words(mesh)) not in done]
    begun = time.monotonic()
    for (name, mesh), tally in hunt(
        jobs, workers=arguments.workers, most=arguments.most, everything=arguments.everything
    ):
        log.append({"case": name, "mesh": words(mesh), **asdict(tally)})
        with arguments.log.open("a") as file:
            file.write(json.dumps(log[-1]) + "\n")
        print(f"{time.monotonic() - begun:7.0f} s  {words(mesh):6} {tally.tried:5d} tried  {name}", flush=True)
        for found in tally.found:
            print(f"    {json.dumps(found)}", flush=True)
    if arguments.output is not None:
        known = {name: hazard_known.verdict(name) for name in hazard_known.CASES}
        found = {"stamp": stamp(), **summary(log), "known hazards": known}
        arguments.output.write_text(json.dumps(found, indent=1) + "\n")
    counts = summary(log)["all"]
    print(f"{len(log)} cases on meshes: {counts}")
    return int(any(counts[what] for what in ("wrong", "died", "failed")))


def summary(log: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """What a log comes to: the counts of all, those by primitive, and all that was found."""
    whole = Tally()
    cases: dict[str, set[str]] = {}
    meshes: dict[str, int] = {}
    by_primitive: dict[str, Tally] = {}
    for entry in log:
        tally = Tally(**{what: value for what, value in entry.items() if what not in ("case", "mesh")})
        kind = entry["case"].split()[0]
        whole.add(tally)
        by_primitive.setdefault(kind, Tally()).add(tally)
        cases.setdefault(kind, set()).add(entry["case"])
        meshes[entry["mesh"]] = meshes.get(entry["mesh"], 0) + tally.tried

    def counts(tally: Tally) -> dict[str, int]:
        return {what: getattr(tally, what) for what in ("tried", "wrong", "died", "failed", "refused")}

    return {
        "all": counts(whole),
        "tried by mesh": dict(sorted(meshes.items())),
        "by primitive": {
            kind: {"cases": len(cases[kind]), **counts(tally)} for kind, tally in sorted(by_primitive.items())
        },
        "found": whole.found,
    }


if __name__ == "__main__":
    sys.exit(main())
