"""Does every primitive case that JAX carries compute the same planned and sharded as on one device?

    python -m tests.conformance.conformance [--sample] [--groups gather,scatter] [--objective memory] [--plan-only]
                                [--results FILE.jsonl] [--resume] [--record FILE.json]

Runs all cases of `conformance_case` in worker processes, so that a compiler that aborts is a recorded death and not the
end. Outcomes are appended to a JSON lines file; `--resume` runs only what has no outcome there, or one that is not good.
With `--plan-only` nothing is compiled: cases are planned, the mesh searched over eight devices, and printed.
Prints a table by group; the exit status is 0 where nothing crashed, died or was wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, final

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax

from benchmarks.stamp import stamp
from cost_models import OBJECTIVES
from tests.conformance import conformance_case

ROOT = Path(__file__).resolve().parents[2]
CASE_SECONDS = 300.0
"""A worker that takes longer over one case is stopped, and the case counts as a death."""
CASES_PER_WORKER = 400
"""Cases after which a worker is replaced: compiled programs are never given back."""
STRIDE = 8
CHEAP = "--xla_backend_optimization_level=0"
"""XLA's flag for workers: programs this small take longer to optimise than to run; what partitions them is not affected."""
BAD = ("wrong", "crash", "died")


@final
class Worker:
    """A child process that runs cases one at a time."""

    def __init__(self, asked: Sequence[str]) -> None:
        self._asked = asked
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - lives as long as the child
        self._served = 0
        self._child = self._start()

    def _start(self) -> subprocess.Popen[str]:
        command = [sys.executable, str(Path(__file__).resolve()), "--serve", *self._asked]
        pipe, environment = subprocess.PIPE, {**os.environ, "XLA_FLAGS": f"{os.environ['XLA_FLAGS']} {CHEAP}"}
        return subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=self._errors, text=True, cwd=ROOT, env=environment
        )

    def run(self, name: str) -> dict[str, Any]:
        """The outcome of one case, as a record."""
        if self._child.poll() is not None or self._served >= CASES_PER_WORKER:
            self.close()
            self._errors.seek(0)
            self._errors.truncate()
            self._child, self._served = self._start(), 0
        self._served += 1
        stdin, stdout = self._child.stdin, self._child.stdout
        if stdin is None or stdout is None:
            raise RuntimeError("the worker has no pipes")
        alarm = threading.Timer(CASE_SECONDS, self._child.kill)
        alarm.start()
        try:
            stdin.write(name + "\n")
            stdin.flush()
            line = stdout.readline()
        except BrokenPipeError:
            line = ""
        alarm.cancel()
        if line:
            return json.loads(line)
        status = self._child.wait()
        self._errors.seek(0)
        tail = [text for text in self._errors.read().splitlines() if "Check failed" in text or text.startswith("F0")]
        reason = f"the process ended with status {status}: {' '.join(tail)[-400:]}"
        group = str(conformance_case.harnesses()[name].group_name)
        return conformance_case.Outcome(name=name, group=group, status="died", reason=reason).record()

    def close(self) -> None:
        """Ends the child."""
        if self._child.stdin is not None:
            self._child.stdin.close()
        self._child.wait()


def serve(outcome: Callable[[str, str], conformance_case.Outcome], objective: str) -> None:
    """Reads names of cases, writes a record for each."""
    with os.fdopen(os.dup(1), "w") as out:
        os.dup2(2, 1)  # what programs print must not come between the records
        for line in sys.stdin:
            print(json.dumps(outcome(line.strip(), objective).record()), file=out, flush=True)


def run_all(names: Sequence[str], results: Path, workers: int, asked: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The outcomes of the cases, in the order in which they end; each is appended to `results` as it comes.

    `asked` are the options of this script that workers take over.
    """
    left, done = iter(names), list[dict[str, Any]]()
    lock, ready = threading.Lock(), threading.Semaphore(0)

    def work() -> None:
        worker = Worker(asked)
        while True:
            with lock:
                name = next(left, None)
            if name is None:
                break
            record = worker.run(name)
            with lock:
                with results.open("a") as file:
                    print(json.dumps(record), file=file)
                done.append(record)
            ready.release()
        worker.close()

    threads = [threading.Thread(target=work, daemon=True) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for i in range(len(names)):
        ready.acquire()
        yield done[i]


def read(results: Path) -> dict[str, dict[str, Any]]:
    """The last outcome of every case in a file."""
    lines = results.read_text().splitlines() if results.exists() else []
    return {record["name"]: record for record in map(json.loads, lines)}


def row(records: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """How many cases there are, and what became of them."""
    status = Counter(r["status"] for r in records)
    ran = [r for r in records if r["status"] != "rejected"]
    placed = Counter(r["placed"] for r in ran if r["status"] == "ok")
    return {
        "cases": len(records),
        "ours": placed["ours"],
        "shardy": placed["shardy"],
        "no rule": placed["no rule"],
        "whole": placed["whole"],
        "indivisible": sum(r["placed"] == "whole" and not r["divisible"] for r in ran if r["status"] == "ok"),
        "more moved": sum(r["extra_bytes"] > 0 for r in ran),
        "rejected": status["rejected"],
        "refused": status["refused"],
        **{word: status[word] for word in BAD},
    }


def table(records: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """The rows of all groups by name, and of all together under "all"."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for record in records:
        groups.setdefault(record["group"], []).append(record)
    return {**{name: row(groups[name]) for name in sorted(groups)}, "all": row(records)}


def show(rows: Mapping[str, Mapping[str, int]]) -> None:
    """Prints the table."""
    columns = list(rows["all"])
    print(f"{'group':<30}" + "".join(f"{c:>12}" for c in columns))
    for name, counts in rows.items():
        print(f"{name:<30}" + "".join(f"{counts[c] or '-':>12}" for c in columns))
    print(
        "ours, shardy: split by our rule, by Shardy's. no rule, whole: run whole, for lack of a rule, or all the same"
    )
    print("(indivisible of these: no axis divides a dim). more moved: collectives beyond the predicted ones. rejected:")
    print("jax.jit on one device does not run it. refused: the planner says in words why it does not plan it.")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", action="store_true", help="only the fixed sample of the fast tests")
    parser.add_argument("--groups", default="", help="only these groups, by commas")
    parser.add_argument("--objective", choices=(*OBJECTIVES, "memory"), default="time", help="what plans minimise")
    parser.add_argument("--plan-only", action="store_true", help="plan and print, compile and run nothing")
    parser.add_argument("--results", type=Path, default=ROOT / "build" / f"conformance-{jax.__version__}.jsonl")
    parser.add_argument("--resume", action="store_true", help="keep good outcomes that the file has")
    parser.add_argument("--record", type=Path, help="JSON file for the counts by group, beside those of other releases")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(conformance_case.only_plan if options.plan_only else conformance_case.run, options.objective)
        return 0
    asked = ["--objective", options.objective, *(["--plan-only"] if options.plan_only else [])]
    wanted = set(filter(None, options.groups.split(",")))
    names = conformance_case.sample() if options.sample else list(conformance_case.harnesses())
    names = [n for n in names if not wanted or conformance_case.harnesses()[n].group_name in wanted]
    options.results.parent.mkdir(parents=True, exist_ok=True)
    if not options.resume:
        options.results.unlink(missing_ok=True)
    kept = {n: r for n, r in read(options.results).items() if n in set(names) and r["status"] not in BAD}
    records = list(kept.values())
    # A part of every group first, so that a run that is cut short has seen them all.
    left = [n for start in range(STRIDE) for n in names[start::STRIDE] if n not in kept]
    for count, record in enumerate(run_all(left, options.results, options.workers, asked)):
        records.append(record)
        if record["status"] in BAD:
            print(f"{record['status'].upper()} {record['name']} on {record['mesh']}: {record['reason']}", flush=True)
        if count % 500 == 499:
            print(f"{len(records)} of {len(names)}", flush=True)
    rows = table(records)
    show(rows)
    if options.record:
        old = json.loads(options.record.read_text()) if options.record.exists() else {}
        old[jax.__version__] = {**stamp(), "cases_of_jax": len(conformance_case.harnesses()), "groups": rows}
        options.record.write_text(json.dumps(old, indent=1, sort_keys=True) + "\n")
    return int(any(rows["all"][word] for word in BAD))


if __name__ == "__main__":
    sys.exit(main())
