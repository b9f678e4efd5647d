"""The code of a page of the documentation, run as a reader would: block after block, in one folder.

Blocks marked `python` run as one module; one with `title="train.py"` is a file, which later blocks use. Blocks marked `sh`
are commands, of which `meshwright` and `python` are this environment's. What a page leaves to its reader, such as a
function of the reader's own, stands in a comment that begins with `<!-- run`. Blocks in other languages are not run.

`python -m tests.pages README.md FOLDER` writes the files of a page into a folder.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from markdown_it import MarkdownIt

from tests.fork_server import commands

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
_HIDDEN = re.compile(r"<!-- run\n(.*?)-->", re.DOTALL)
_TITLE = re.compile(r'title="([^"]+)"')


@dataclass(frozen=True, slots=True)
class Block:
    """A block of code: its language, the file it is written to ("": none), its text, and the line it begins at, from 1."""

    language: str
    title: str
    text: str
    line: int


def blocks(page: Path) -> Iterator[Block]:
    """The blocks of a page that are run, in order."""
    for token in MarkdownIt().parse(page.read_text()):
        line = token.map[0] + 2 if token.map else 0
        words = token.info.split(maxsplit=1)
        if token.type == "html_block" and (hidden := _HIDDEN.search(token.content)):
            yield Block("python", "", hidden[1], line)
        elif token.type == "fence" and words and words[0] in ("python", "sh"):
            title = _TITLE.search(token.info)
            yield Block(words[0], title[1] if title else "", token.content, line)


def run(page: Path, folder: Path) -> None:
    """Runs the blocks of a page in `folder`, which is where the process is and imports from; forgets what was imported."""
    before = set(sys.modules)
    module = ModuleType("page")
    sys.modules["page"] = module  # where classes that are defined here look for their module
    try:
        for block in blocks(page):
            if block.title:
                (folder / block.title).write_text(block.text)
            elif block.language == "sh":
                _run_commands(block, page, folder)
            else:
                place = "\n" * (block.line - 1)  # so that a traceback names the line of the page
                exec(compile(place + block.text, str(page), "exec"), vars(module))
    finally:
        for name in set(sys.modules) - before:
            if name == "page" or str(getattr(sys.modules[name], "__file__", "")).startswith(str(folder)):
                del sys.modules[name]


def _run_commands(block: Block, page: Path, folder: Path) -> None:
    path = f"{commands()}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
    # A command's own flags for XLA follow those of the tests, which compile quickly.
    text = re.sub(r"\bXLA_FLAGS=(\S+)", r'XLA_FLAGS="$XLA_FLAGS \1"', block.text)
    environment.setdefault("XLA_FLAGS", "")
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise AssertionError(f"{page.name}, line {block.line}: exit code {done.returncode}\n{done.stdout}{done.stderr}")


def write_files(page: Path, folder: Path) -> None:
    """Writes the files of a page into a folder."""
    for block in blocks(page):
        if block.title:
            (folder / block.title).write_text(block.text)


if __name__ == "__main__":
    write_files(Path(sys.argv[1]), Path(sys.argv[2]))
