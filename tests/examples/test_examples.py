"""The examples run, and what is made of them is up to date."""

from __future__ import annotations

import importlib.util
import json
import re

import jax
import pytest

from examples.build import EXAMPLES, NOTEBOOKS, ROOT, TRANSCRIPT, notebook_text, run
from tests.fork_server import python
from tests.xla_flags import without_devices

NEEDS = {"load_data": ("grain",), "restart_on_fewer": ("orbax.checkpoint",), "train_to_pod": ("flax", "optax")}
"""What an example imports that not everybody has."""
FAST = ("heat", "mixed_precision")
"""Those that the fast tests run."""
MARKS = {"tour": pytest.mark.slow}
SCRIPTS = sorted(path.stem for path in EXAMPLES.glob("*.py") if path.stem != "build")


def is_there(name: str) -> bool:
    return importlib.util.find_spec(name.split(".")[0]) is not None and importlib.util.find_spec(name) is not None


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in FAST else MARKS.get(n, pytest.mark.sample)) for n in SCRIPTS],
)
def test_an_example_runs(name: str) -> None:
    for needed in NEEDS.get(name, ()):
        if not is_there(needed):
            pytest.skip(f"{needed} is not installed")
    said = run(EXAMPLES / f"{name}.py", python=python(), flags=without_devices())
    assert said
    if name == "tour" and f"jax {jax.__version__}\n" in TRANSCRIPT.read_text():
        assert masked(said) == masked(TRANSCRIPT.read_text().split("\n", 1)[1])


def masked(text: str) -> str:
    """A transcript without what no two runs have in common: seconds of searches, rounding, how far a front came in them."""
    text = re.sub(r"Front of .*?\nTrue\n", "", text, flags=re.DOTALL)
    return re.sub(r"[\d.]+ s\)|\d\.\d+e-\d+", "#", " ".join(text.split()))


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_its_script(name: str) -> None:
    text = (EXAMPLES / f"{name}.ipynb").read_text()
    assert text == notebook_text((EXAMPLES / f"{name}.py").read_text()), "run python -m examples.build"
    for cell in json.loads(text)["cells"]:
        if cell["cell_type"] == "code":
            compile("".join(cell["source"]), name, "exec")


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_example_has_a_page_that_shows_it(name: str) -> None:
    folder = ROOT / "docs" / "how_to"
    assert f"../../examples/{name}.py" in (folder / f"{name}.md").read_text()
    assert f"\n{name}\n" in (folder / "index.md").read_text()


def test_pages_are_of_examples() -> None:
    pages = {path.stem for path in (ROOT / "docs" / "how_to").glob("*.md")} - {"index"}
    assert pages == set(SCRIPTS)
