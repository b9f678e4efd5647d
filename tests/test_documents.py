"""Every block of code in the README and the documentation runs as it stands."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
import runpy
import tomllib
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

import planner
from planner.cli.main import COMMANDS
from tests.pages import PAGES, ROOT, blocks, run

NEEDS = {"feeding": "grain", "layouts": "orbax.checkpoint", "reading_a_plan": "matplotlib"}
"""What a page imports that not everybody has."""


@pytest.mark.sample
@pytest.mark.parametrize("page", [page for page in PAGES if any(blocks(page))], ids=lambda page: page.stem)
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if page.stem in NEEDS:
        pytest.importorskip(NEEDS[page.stem])
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    run(page, tmp_path)


@pytest.mark.parametrize("page", [ROOT / "CONTRIBUTING.md", *PAGES], ids=lambda page: page.stem)
def test_no_page_has_python_that_does_not_run(page: Path) -> None:
    """A block in another language, or in none, is not run: it may hold no Python that could be."""
    fences = [token for token in MarkdownIt().parse(page.read_text()) if token.type == "fence"]
    assert [
        token.content for token in fences if token.info.split()[:1] != ["python"] and is_python(token.content)
    ] == []


def is_python(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


def test_the_reference_has_every_public_name() -> None:
    text = (ROOT / "docs" / "api.md").read_text()
    assert [name for name in planner.__all__ if f":: planner.{name}\n" not in text] == []


def test_the_design_names_every_folder() -> None:
    text = (ROOT / "docs" / "design.md").read_text()
    folders = [
        path.parent for name in ("planner", "pbqp", "cost_models") for path in (ROOT / name).rglob("__init__.py")
    ]
    names = [str(path.relative_to(ROOT)).removeprefix("planner/") for path in folders if path != ROOT / "planner"]
    assert [name for name in sorted(names) if f"| `{name}` |" not in text] == []


def test_the_design_has_the_import_contract() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    assert "".join(f"    {row}\n" for row in layers) in (ROOT / "docs" / "design.md").read_text()


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "README.md", "docs/design.md"])
def test_files_that_a_document_names_exist(name: str) -> None:
    named = re.findall(
        r"[`(]((?:benchmarks|cost_models|docs|pbqp|planner|tests)/[\w./]+)[`)]", (ROOT / name).read_text()
    )
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []


@pytest.mark.parametrize(("name", "most"), [("README.md", 200), ("docs/design.md", 300)])
def test_a_document_that_everybody_reads_is_short(name: str, most: int) -> None:
    assert len((ROOT / name).read_text().splitlines()) <= most


def test_blocks_of_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "Text.\n\n<!-- run\na = 1\n-->\n\n"
        '```python title="own.py"\nb = 2\n```\n\n```text\nno code\n```\n\n```sh\npython -c "import own" > said\n```\n\n'
        "```python\nimport own\nassert a + own.b == 3\nraise LookupError\n```\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert [(b.language, b.title, b.line) for b in blocks(page)] == [
        ("python", "", 4),
        ("python", "own.py", 8),
        ("sh", "", 16),
        ("python", "", 20),
    ]
    with pytest.raises(LookupError) as raised:
        run(page, tmp_path)
    assert raised.traceback[-1].lineno + 1 == 22
    assert (tmp_path / "said").exists()


def test_every_command_has_a_page() -> None:
    pages = {path.stem: path.read_text() for path in (ROOT / "docs" / "commands").glob("*.md")}
    assert set(pages) == set(COMMANDS)
    assert [name for name, text in pages.items() if f"```{{command}} {name}\n" not in text] == []


def test_the_drawing_of_collectives_is_that_of_its_script() -> None:
    drawn = runpy.run_path(str(ROOT / "docs" / "draw_collectives.py"))["picture"]()
    assert drawn == (ROOT / "docs" / "collectives.svg").read_text()


@pytest.mark.parametrize(
    "name", ["audit", "compare_topologies", "fallbacks", "op_graph", "pareto", "plan", "plan_many", "serving"]
)
def test_the_reference_documents_parameters_that_there_are(name: str) -> None:
    spec = importlib.util.spec_from_file_location("conf", ROOT / "docs" / "conf.py")
    assert spec is not None
    assert spec.loader is not None
    conf = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(conf)
    function = getattr(planner, name)
    lines = (inspect.getdoc(function) or "").splitlines()
    conf.read_docstring(None, "function", name, function, None, lines)
    named = {match[1] for line in lines if (match := re.match(r":param \**(.+?):", line))}
    assert named
    assert named <= set(inspect.signature(function).parameters)
