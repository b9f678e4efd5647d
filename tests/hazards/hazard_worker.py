"""Child processes in which cases are tried, so that a compiler that aborts is a death on record and not the end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fork_server import python
from tests.xla_flags import with_devices

ROOT = Path(__file__).resolve().parents[2]
TOGETHER = 16
"""How many strategies are compiled as one program."""
ENDS = frozenset(("done", "error", "refused"))
"""What the last answer to a job says."""


@dataclass(kw_only=True)
class Tally:
    """What was tried, how much of it was wrong, died, or could not be compiled, and what was found.

    `refused` counts cases that JAX itself does not compile for several devices.
    """

    tried: int = 0
    wrong: int = 0
    died: int = 0
    failed: int = 0
    refused: int = 0
    found: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    def add(self, other: Tally) -> None:
        """Counts what another tally has counted."""
        self.tried += other.tried
        self.wrong += other.wrong
        self.died += other.died
        self.failed += other.failed
        self.refused += other.refused
        self.found += other.found


# ---------------------------------------------------------------- the child


def work() -> None:
    """Serves jobs from standard input, a JSON line each; answers before and after every program it compiles."""
    from tests.hazards.hazard_cases import all_cases
    from tests.hazards.hazard_trial import Bench

    cases = all_cases()

    def say(**answer: Any) -> None:
        print(json.dumps(answer), flush=True)

    for line in sys.stdin:
        job = json.loads(line)
        try:
            bench = Bench(cases[job["case"]], job["mesh"], everything=job["everything"])
            if (why := bench.refused) is not None:
                say(refused=why)
                continue
            trials = bench.trials(job["most"])
        except Exception as error:
            say(error=f"{type(error).__name__}: {str(error)[:400]}")
            continue
        stop = min(job["stop"], len(trials)) if job["stop"] else len(trials)
        for start in range(job["start"], stop, job["together"]):
            some = trials[start : min(start + job["together"], stop)]
            say(trying=[start, start + len(some)], stop=stop, specs=[trial.specs for trial in some])
            say(tried=len(some), wrong=list(_wrong(bench, some)))
        say(done=True)


def _wrong(bench: Any, trials: Sequence[Any]) -> Iterator[dict[str, str]]:
    try:
        verdicts = bench.wrong(trials)
    except Exception as error:
        if len(trials) > 1:
            for trial in trials:
                yield from _wrong(bench, [trial])
        else:
            yield {
                "op": trials[0].op,
                "specs": trials[0].specs,
                "failed": f"{type(error).__name__}: {str(error)[:400]}",
            }
        return
    for trial, why in zip(trials, verdicts, strict=True):
        if why is not None:
            alone = None if len(trials) == 1 else bench.wrong([trial])[0]
            where = "" if len(trials) == 1 or alone is not None else " (in company only)"
            yield {"op": trial.op, "specs": trial.specs, "wrong": f"{alone or why}{where}"}


# ---------------------------------------------------------------- the parent


class Worker:
    """A child process that is started again when it dies."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[str] | None = None
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - as long as the worker lives

    def start(self) -> subprocess.Popen[str]:
        """The running child."""
        if self.process is None or self.process.poll() is not None:
            if self.process is not None:
                self.process.communicate()
            self.errors.seek(0)
            self.errors.truncate()
            environment = {
                **os.environ,
                "JAX_PLATFORMS": "cpu",
                "XLA_FLAGS": with_devices(8),
                "PYTHONPATH": str(ROOT),
            }
            self.process = subprocess.Popen(
                [*python(), "-m", "tests.hazards.hazard_worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.errors,
                text=True,
                env=environment,
                cwd=ROOT,
            )
        return self.process

    def last_words(self) -> str:
        """What the compiler said as it died."""
        if self.process is not None:
            self.process.wait()
        self.errors.seek(0)
        lines = [line.strip() for line in self.errors if line.strip()]
        telling = [line for line in lines if "Check failed" in line or "F0" in line[:2]] or lines[-1:]
        return telling[0][-300:] if telling else "no message"

    def answers(self, job: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """What the child says of a job; ends early where it dies."""
        process = self.start()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(job) + "\n")
        process.stdin.flush()
        for line in process.stdout:
            if line.startswith("{"):
                answer = json.loads(line)
                yield answer
                if ENDS & answer.keys():
                    return

    def run(self, case: str, mesh: Mapping[str, int], what: Mapping[str, Any]) -> Tally:
        """All trials of a case on a mesh."""
        tally = Tally()
        jobs = [{"case": case, "mesh": mesh, "start": 0, "stop": 0, "together": TOGETHER, **what}]
        words = "x".join(map(str, mesh.values()))
        while jobs:
            job = jobs.pop()
            trying: dict[str, Any] | None = None
            ended = False
            for answer in self.answers(job):
                if "trying" in answer:
                    trying = answer
                elif "tried" in answer:
                    tally.tried += answer["tried"]
                    for found in answer["wrong"]:
                        tally.wrong += "wrong" in found
                        tally.failed += "failed" in found
                        tally.found.append({"case": case, "mesh": words, **found})
                elif "error" in answer:
                    tally.failed += 1
                    tally.found.append({"case": case, "mesh": words, "failed": answer["error"]})
                tally.refused += "refused" in answer
                ended = bool(ENDS & answer.keys())
            if ended:
                continue
            why = self.last_words()
            if trying is None:
                tally.failed += 1
                tally.found.append({"case": case, "mesh": words, "failed": f"no trial could be made: {why}"})
                continue
            first, end = trying["trying"]
            if end < trying["stop"]:
                jobs.append({**job, "start": end, "stop": trying["stop"], "together": TOGETHER})
            if end - first > 1:
                jobs.append({**job, "start": first, "stop": end, "together": 1})
            else:
                tally.tried += 1
                tally.died += 1
                tally.found.append({"case": case, "mesh": words, "specs": trying["specs"][0], "died": why})
                if job["together"] == 1 and end < job["stop"]:
                    jobs[-1]["together"] = 1
        return tally

    def stop(self) -> None:
        """Ends the child, which ends by itself when nothing more can come."""
        if self.process is not None:
            self.process.communicate()
        self.errors.close()


if __name__ == "__main__":
    work()
