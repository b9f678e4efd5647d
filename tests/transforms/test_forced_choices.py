"""Any legal form is right: what is saved, and where, and the number of microbatches drawn at random, run on 8 devices.

The programs are the model files at their small size, the zoo of this folder's tests, those with loops of every kind
(dropout, nested, several), and those of public libraries where they are present.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from typing import Any

import jax
import jax.extend.core as jex_core
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import planner
from benchmarks.models import MODELS
from planner.errors import ArgumentError
from planner.program.form import Form
from planner.program.jaxpr.remat.scopes import crossings
from planner.program.tracing.trace import trace
from planner.program.tracing.traced import Program
from planner.testing import free_wires
from planner.transforms.apply import formed, in_microbatches
from planner.transforms.batch import batch_of
from planner.transforms.remat_choice import Pinned, can_wait
from tests.transforms import loops
from tests.transforms.choices import drawn_choice
from tests.zoo import test_zoo

Made = tuple[Callable[..., Any], tuple[Any, ...]]
MESH = {"x": 4, "y": 2}
COUNTS = (1, 2, 4)
"""Numbers of microbatches."""
QUICK = ("mlp", "llama", "loss_scaling", "dropped", "checked", "flash", "pallas_written_out")
"""A sample of the programs: without loops, with scanned layers, of float16, with dropout, with constants in loops, with
kernels in layers scanned and written out."""


def _model(name: str) -> Callable[[], Made]:
    def make() -> Made:
        model = MODELS[name]("small")
        return model.fn, model.args

    return make


def _loop(name: str) -> Callable[[], Made]:
    return lambda: (loops.PROGRAMS[name](), loops.arguments())


PROGRAMS: Mapping[str, Callable[[], Made]] = {
    **{name: _model(name) for name in MODELS},
    **{name: _loop(name) for name in loops.PROGRAMS},
    **test_zoo.OWN,
}


@cache
def _traced(name: str) -> tuple[Program, Made]:
    made = PROGRAMS[name]()
    return trace(*made), made


def _in_parts(program: Program, count: int) -> Program:
    """The program in so many microbatches; as it is where it cannot be taken so."""
    try:
        return program if count == 1 else in_microbatches(program, count, batch_of(program))
    except ArgumentError:
        return program


def _check(program: Program, made: Made, data: st.DataObject) -> None:
    fn, args = made
    parted = _in_parts(program, data.draw(st.sampled_from(COUNTS), label="microbatches"))
    saved = tuple(drawn_choice(data, crossing) for crossing in crossings(parted))
    offloaded = tuple(
        tuple(i for i in one or () if can_wait(crossing, crossing.values[i]) and data.draw(st.booleans(), label="host"))
        for one, crossing in zip(saved, crossings(parted), strict=True)
    )
    form = Form(microbatches=parted.form.microbatches, saved=saved, offloaded=offloaded)
    run = jex_core.jaxpr_as_fun(formed(program, form).jaxpr)

    def in_form(*given: Any) -> Any:
        return jax.tree.unflatten(program.out_tree, run(*jax.tree.leaves(given), *program.constants))

    plan = planner.plan(
        in_form,
        args,
        devices=jax.devices()[:8],
        topology=free_wires(8),
        mesh=MESH,
        options=planner.Options(check="never", remat="as written", microbatches=1),
    )
    numerics = plan.verify(*args, reference=fn).numerics
    assert numerics.ok, (form, numerics)


@pytest.mark.parametrize("how", ["save", "recompute"])
@pytest.mark.parametrize("name", ["flash", "flash_written_out", "masked_twice"])
def test_all_saved_or_none_of_a_kernel(name: str, how: Pinned) -> None:
    fn, args = PROGRAMS[name]()
    options = planner.Options(check="never", remat={"*": how}, microbatches=1)
    plan = planner.plan(fn, args, devices=jax.devices()[:8], topology=free_wires(8), mesh=MESH, options=options)
    assert plan.verify(*args, reference=fn).numerics.ok


TRIED = settings(max_examples=1, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.sample
@pytest.mark.parametrize("name", QUICK)
@TRIED
@given(data=st.data())
def test_a_few_programs(name: str, data: st.DataObject) -> None:
    _check(*_traced(name), data)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(PROGRAMS) - set(QUICK)))
@TRIED
@given(data=st.data())
def test_programs(name: str, data: st.DataObject) -> None:
    _check(*_traced(name), data)


@pytest.mark.slow
@pytest.mark.parametrize("name", test_zoo.LIBRARIES or ["absent"])
@pytest.mark.filterwarnings("ignore")  # what the libraries warn of is theirs
def test_programs_of_libraries(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    test_zoo.needs(name, monkeypatch)
    made = import_module(name).build(size="small")
    program = trace(*made)

    @TRIED
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        _check(program, made, data)

    check()
