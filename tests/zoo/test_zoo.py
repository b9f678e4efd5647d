"""Programs in many styles, planned so that everything is split, run on 8 devices and verified in all three parts.

Those of this folder (`zoo_programs`, `zoo_science`), and those of public libraries in `../shared/zoo` where that folder
and their packages are present.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest

import planner
from planner.testing import assert_same_as_single_device
from tests.zoo import zoo_programs, zoo_science

Made = tuple[Callable[..., Any], tuple[Any, ...]]
OWN: Mapping[str, Callable[[], Made]] = {**zoo_programs.PROGRAMS, **zoo_science.PROGRAMS}
QUICK = ("implicit", "k_means", "loss_scaling", "replay_learning", "transport", "vector_quantised")
"""A sample of them: loops of unknown length, a branch, float16, indexing, an implicit derivative."""

MOVED_OTHERWISE: Mapping[str, str] = {
    "kalman": "slices with odd ends of split sequences, which XLA moves as sums of masked parts",
    "lattice_boltzmann": "XLA finds that slices put together again are a rotation, and gathers fewer of them",
}
"""Programs whose compiled collectives differ from the predicted ones by more than verification allows, and why."""

SHARED = Path(__file__).resolve().parents[3] / "shared" / "zoo"
LIBRARIES = sorted(path.stem for path in SHARED.glob("[!_]*.py"))


def check(fn: Callable[..., Any], args: tuple[Any, ...], *, moved_otherwise: bool = False) -> None:
    """Plans with free wires and slow devices, runs and verifies; raises where a part fails."""
    plan = assert_same_as_single_device(fn, args, mesh={"x": 4, "y": 2})
    found = plan.verify()
    assert found.memory.ok is True, found.memory
    assert not found.memory.differs, found.memory
    assert found.collectives.by_kind is not None, found.collectives
    assert not found.collectives.differs or moved_otherwise, (str(found), found.collectives.by_kind, str(plan))


@pytest.mark.sample
@pytest.mark.parametrize("name", QUICK)
def test_a_few_programs(name: str) -> None:
    check(*OWN[name]())


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(OWN) - set(QUICK)))
def test_programs(name: str) -> None:
    check(*OWN[name](), moved_otherwise=name in MOVED_OTHERWISE)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", [None, {"x": 4, "y": 2}], ids=["as planned", "all split"])
@pytest.mark.parametrize("name", LIBRARIES or ["absent"])
@pytest.mark.filterwarnings("ignore")  # what the libraries warn of is theirs
def test_programs_of_libraries(name: str, mesh: Mapping[str, int] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    needs(name, monkeypatch)
    fn, args = import_module(name).build(size="small")
    if mesh is not None:
        check(fn, args)
        return
    plan = planner.plan(fn, args)
    assert not [checked for checked in plan.checked if checked.ok is False], plan.checked
    assert plan.verify(*args).as_promised, str(plan.verify(*args))


def needs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a library's program be imported; skips where it or its packages are absent."""
    if not LIBRARIES:
        pytest.skip(f"{SHARED} is not present")
    monkeypatch.syspath_prepend(str(SHARED))
    absent = [package for package in _packages(name) if not _installed(package)]
    if absent:
        pytest.skip(f"{name} needs {', '.join(absent)}")


def _packages(name: str) -> list[str]:
    """The requirements that a program's file states, without importing it."""
    for line in (SHARED / f"{name}.py").read_text().splitlines():
        if line.startswith("PACKAGES"):
            return [word.split("==")[0] for word in line.split('"')[1::2]]
    return []


def _installed(package: str) -> bool:
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True
