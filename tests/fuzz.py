"""Runs many random programs: `python -m tests.fuzz --start 0 --count 5000`, from the root of the repository.

Programs are planned, compiled and run in child processes, so that a compiler that ends its process ends one program
only. Each failure is made smaller and printed as Python to be copied into a test. Exit status: 1 where any failed.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CHUNK = 100
"""Programs per child: what JAX keeps of each adds up."""
PATIENCE = 180.0
"""Seconds without a word after which a child counts as hung."""
TRIES = 40
"""Programs run to make one failing case smaller."""
DEATHS = 40
"""Children spent on making one deadly case smaller."""


@dataclass
class Tally:
    """What has been seen so far."""

    run: int = 0
    unfit: int = 0
    """Programs whose compilation for one device, unplanned, ends the process."""
    failed: Counter[str] = field(default_factory=Counter[str])
    seconds: float = 0.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--start", type=int, default=0, help="number of the first program")
    parser.add_argument("--count", type=int, default=5000, help="how many programs")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no program after so many seconds")
    parser.add_argument("--log", type=Path, help="file to which failures are appended, one JSON object a line")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--one", metavar="CASE", help="run the one case that this Python describes")
    parser.add_argument("--alone", metavar="CASE", help="run it on one device, unplanned")
    options = parser.parse_args()
    if options.one is not None or options.alone is not None:
        return _one(options.one or options.alone, planned=options.one is not None)
    if options.child:
        return _child(options.start, options.count)
    return _parent(options.start, options.count, options.seconds, options.log)


# ---------------------------------------------------------------- the parent


def _parent(start: int, count: int, seconds: float, log: Path | None) -> int:
    tally, begun, seed = Tally(), time.monotonic(), start
    stop = start + count
    while seed < stop and time.monotonic() - begun < seconds:
        last = min(seed + CHUNK, stop)
        while seed < last:
            seed = _chunk(seed, last, tally, log)
        tally.seconds = time.monotonic() - begun
        print(
            f"{tally.run} programs ({start} to {seed - 1}) in {tally.seconds:.0f} s, failures: {dict(tally.failed)}"
            + (f"; {tally.unfit} end the compiler even unplanned" if tally.unfit else ""),
            flush=True,
        )
    if seed < stop:
        print(f"out of time; go on with --start {seed}")
    return 1 if tally.failed else 0


def _chunk(seed: int, last: int, tally: Tally, log: Path | None) -> int:
    """Runs the programs from `seed` in one child; returns the number to go on with, which is less where it died."""
    at = seed
    shrinking = False
    with tempfile.TemporaryFile("w+") as errors:
        child = subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz", "--child", "--start", str(seed), "--count", str(last - seed)],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=_environment(),
        )
        hung = False
        for line in _lines(child):
            if line is None:
                child.kill()
                hung = True
                break
            word = json.loads(line)
            at, shrinking = word["seed"], word["state"] == "failed"
            if word["state"] == "passed":
                tally.run += 1
            elif word["state"] == "failed":
                tally.run += 1
                tally.failed[word["failure"].split(":")[0]] += 1
                _tell(word, log)
            elif word["state"] == "shrunk":
                _tell(word, log)
        status = child.wait()
        if status == 0 and not hung:
            return last
        if not shrinking:
            errors.seek(0)
            words = "hung" if hung else f"died: status {status}, {_last_words(errors.read())}"
            if not hung and _dies(["--alone", repr(_case(at))]):
                tally.unfit += 1
                return at + 1
            tally.run += 1
            tally.failed[words.split(":")[0]] += 1
            _tell({"seed": at, "state": "failed", "failure": words, "case": repr(_case(at))}, log)
            if not hung:
                _tell({"seed": at, "state": "shrunk", "failure": words, "case": _shrunk_death(at)}, log)
    return at + 1


def _last_words(text: str) -> str:
    """What a compiler said before it ended the process, without its stack."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith(("@", "***"))]
    return " ".join(lines[-5:])[-1500:]


def _lines(child: subprocess.Popen[str]) -> Iterator[str | None]:
    """What a child says, line by line; None once it has been silent for too long."""
    said: queue.Queue[str | None] = queue.Queue()

    def listen() -> None:
        for line in child.stdout or ():
            said.put(line)
        said.put(None)

    threading.Thread(target=listen, daemon=True).start()
    while True:
        try:
            line = said.get(timeout=PATIENCE)
        except queue.Empty:
            yield None
            return
        if line is None:
            return
        if line.startswith("{"):
            yield line


def _tell(word: dict[str, Any], log: Path | None) -> None:
    print(f"\nprogram {word['seed']} {word['state']}: {word['failure']}\n  {word['case']}", flush=True)
    if log is not None:
        with log.open("a") as file:
            file.write(json.dumps(word) + "\n")


def _environment() -> dict[str, str]:
    flags = os.environ.get("XLA_FLAGS", "")
    return {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"{flags} --xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0 "
        "--xla_llvm_disable_expensive_passes=true",
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }


def _case(seed: int) -> Any:
    from tests.programs import case

    return case(seed)


def _shrunk_death(seed: int) -> str:
    from tests.programs import Case, shrunk

    def dies(found: Case) -> bool:
        return _dies(["--one", repr(found)]) and not _dies(["--alone", repr(found)])

    return repr(shrunk(_case(seed), dies, tries=DEATHS))


def _dies(arguments: list[str]) -> bool:
    """Whether a child with these arguments is ended by a signal."""
    command = [sys.executable, "-m", "tests.fuzz", *arguments]
    try:
        return subprocess.run(command, env=_environment(), capture_output=True, timeout=PATIENCE).returncode < 0
    except subprocess.TimeoutExpired:
        return False


# ---------------------------------------------------------------- the children


def _one(text: str, *, planned: bool) -> int:
    """Runs one case given as Python."""
    from tests.programs import Description
    from tests.programs_builder import Do
    from tests.programs_check import failure_of, runs_alone

    case = eval(text, {"Description": Description, "Do": Do})
    if planned:
        found = failure_of(case)
    else:
        found = None if runs_alone(case[0].function(), case[0].example()) else "does not run on one device"
    print(found or "passed")
    return 1 if found else 0


def _child(start: int, count: int) -> int:
    import jax

    from tests.programs import Case, case, shrunk
    from tests.programs_check import failure_of

    def say(seed: int, state: str, **more: str) -> None:
        print(json.dumps({"seed": seed, "state": state, **more}), flush=True)

    for seed in range(start, start + count):
        say(seed, "started")
        found = case(seed)
        wrong = failure_of(found)
        if wrong is None:
            say(seed, "passed")
            continue
        say(seed, "failed", failure=wrong, case=repr(found))
        kind = wrong.split(":")[0]
        last = wrong

        def fails(candidate: Case, kind: str = kind) -> bool:
            nonlocal last
            why = failure_of(candidate)
            if why is not None and why.startswith(kind):
                last = why
                return True
            return False

        small = shrunk(found, fails, tries=TRIES)
        say(seed, "shrunk", failure=last, case=repr(small))
        jax.clear_caches()
    return 0


if __name__ == "__main__":
    sys.exit(main())
