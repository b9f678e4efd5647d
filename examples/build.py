"""Writes what is made of the examples: the notebooks, and the transcript of the tour that the documentation shows.

    python -m examples.build

A script becomes a notebook where its cells are marked by `# %%` and its text by `# %% [markdown]`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
NOTEBOOKS = ("tour", "train_to_pod")
TRANSCRIPT = ROOT / "docs" / "how_to" / "tour.txt"
_CELL = re.compile(r"^# %%(?: \[(markdown)\])?\n", re.MULTILINE)


def notebook_text(script: str) -> str:
    """The notebook of a script, as JSON, without outputs."""
    _, *pieces = _CELL.split(script)
    cells = [_cell(i, kind, text) for i, (kind, text) in enumerate(zip(pieces[::2], pieces[1::2], strict=True))]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def _cell(position: int, kind: str | None, text: str) -> dict[str, Any]:
    lines = text.strip("\n").split("\n")
    if kind == "markdown":
        lines = [line.removeprefix("#").removeprefix(" ") for line in lines]
    source = [*(f"{line}\n" for line in lines[:-1]), lines[-1]]
    cell = {"id": f"cell-{position}", "metadata": {}, "source": source}
    if kind == "markdown":
        return {"cell_type": "markdown", **cell}
    return {"cell_type": "code", "execution_count": None, "outputs": [], **cell}


def run(script: Path, *, python: Sequence[str] = (sys.executable,), flags: str = "") -> str:
    """What a script prints, run from the root as a reader runs it, with these flags for XLA.

    Raises: RuntimeError, with its own error.
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    command = [*python, str(script.relative_to(ROOT))]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{script.name} ended with {done.returncode}:\n{done.stderr}")
    return done.stdout


def main() -> None:
    """Writes them."""
    for name in NOTEBOOKS:
        (EXAMPLES / f"{name}.ipynb").write_text(notebook_text((EXAMPLES / f"{name}.py").read_text()))
    TRANSCRIPT.write_text(f"$ python examples/tour.py    # jax {jax.__version__}\n{run(EXAMPLES / 'tour.py')}")


if __name__ == "__main__":
    main()
