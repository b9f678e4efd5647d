"""Names of the last release are taken for one more, with a warning that points at who wrote them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import planner
from planner import former_names
from planner.cli.main import main
from planner.errors import ArgumentError, InfeasibleError, Offer
from planner.options import Options

QUICK = Options(check="never")
X = jax.ShapeDtypeStruct((8, 8), jnp.float32)
PROGRAM = (
    "import jax, jax.numpy as jnp\ndef f(): return (lambda x: x + 1), (jax.ShapeDtypeStruct((8, 8), jnp.float32),){}\n"
)


def double(x: jax.Array) -> jax.Array:
    return x * 2.0


def warned(old: str, new: str) -> Any:
    return pytest.warns(DeprecationWarning, match=f"^{old} is {new} now; the next release does not take the old name$")


@pytest.mark.parametrize(("old", "new", "value"), [("recompute", "remat", "none"), ("refine", "autotune", "compile")])
def test_options_take_former_names(old: str, new: str, value: str) -> None:
    with warned(f"{old}=", f"{new}=") as caught:
        made = Options(**{old: value})  # pyright: ignore[reportArgumentType]
    assert made == Options(**{new: value})  # pyright: ignore[reportArgumentType]
    assert caught[0].filename == __file__
    with warned(f"{old}=", f"{new}="):
        assert replace(QUICK, **{old: value}) == replace(QUICK, **{new: value})
    with warned(f"{old}=", f"{new}="), pytest.raises(ArgumentError, match=rf"Options\({new}='maybe'\)"):
        Options(**{old: "maybe"})  # pyright: ignore[reportArgumentType]


def test_the_functions_take_former_names() -> None:
    given: Any = {"host_local": ("x",)}
    with warned("host_local=", "process_local=") as caught:
        made = planner.plan(double, (X,), topology="cpu:2", options=QUICK, **given)
    assert made.decision.request.process_local == {"x": 0}
    assert caught[0].filename == __file__
    with warned("host_local=", "process_local="):
        planner.pareto(double, (X,), topology="cpu:2", points=2, options=QUICK, **given)
    with warned("host_local=", "process_local=") as caught:
        planner.plan_many({"one": (double, (X,), given)}, topology="cpu:2", options=QUICK)
    assert caught[0].filename == __file__


@pytest.mark.parametrize(("old", "new"), [("--recompute", "--remat"), ("--refine", "--autotune")])
def test_the_command_line_takes_former_flags(
    old: str, new: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM.format(""))
    command = ["search", f"{tmp_path}/program.py:f", "--topology", "cpu:2", "--check", "never"]
    value = "none" if new == "--remat" else "never"
    with warned(old, new):
        assert main([*command, old, value]) == 0
    capsys.readouterr()
    with pytest.raises(SystemExit):
        main(["search", "--help"])
    text = capsys.readouterr().out
    assert new in text
    assert old not in text


def test_a_program_of_the_command_line_may_have_former_keywords(tmp_path: Path) -> None:
    (tmp_path / "former.py").write_text(PROGRAM.format(", {'host_local': ('x',)}"))
    with warned("host_local=", "process_local="):
        assert main(["search", f"{tmp_path}/former.py:f", "--topology", "cpu:2", "--check", "never"]) == 0


def test_attributes_are_found_by_former_names() -> None:
    plan: Any = planner.plan(double, (X,), topology="cpu:2", options=QUICK)
    with warned("Plan.behind", "Plan.alternatives") as caught:
        assert plan.behind is plan.alternatives
    assert caught[0].filename == __file__
    with pytest.raises(AttributeError, match="'Plan' object has no attribute 'beside'"):
        _ = plan.beside
    offer: Any = Offer(text="donate state")
    with warned("Offer.words", "Offer.text"):
        assert offer.words == "donate state"
    assert InfeasibleError("no", offers=(offer,)).offers == (offer,)


def test_plan_files_keep_the_former_names(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    planner.plan(double, (X,), topology="cpu:2", options=QUICK, process_local=("x",)).save(path)
    assert json.loads(path.read_text())["request"]["host_local"] == {"x": 0}
    assert planner.load(path).decision.request.process_local == {"x": 0}


def test_every_former_keyword_has_a_name_of_today() -> None:
    fields = set(Options.__dataclass_fields__)
    assert set(former_names.FORMER_KEYWORDS.values()) <= fields | {"process_local"}
    assert not former_names.FORMER_KEYWORDS.keys() & fields
