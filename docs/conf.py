"""The documentation as a site: pages in Markdown, the reference from the docstrings."""

import contextlib
import importlib.metadata
import io
import os
import re
from typing import Any

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from planner.cli.main import main

project = "Meshwright"
author = "the authors of Meshwright"
release = importlib.metadata.version("meshwright")
extensions = ["myst_parser", "sphinx.ext.autodoc"]
html_theme = "furo"
html_title = f"Meshwright {release}"
html_show_copyright = False
myst_heading_anchors = 3

default_role = "code"  # docstrings are plain sentences with names in `backticks`
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_default_options = {"members": True}

_ENTRY = re.compile(r"([\w*][\w, *]*): (.*)")
"""Of a section Parameters; what is indented goes on with the entry before it."""
_FIELD = re.compile(r"`\w+`(, `\w+`)*: .*")
_PLURAL = re.compile(r"(`[^`]+`)(?=\w)")


def read_docstring(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Makes of a docstring what Sphinx reads.

    Entries of the section Parameters become fields, other headings words in bold, and lines that begin with the name of a
    field in `backticks` items of a list.
    """
    section, read = "", list[str]()
    for position, line in enumerate(lines):
        following = lines[position + 1] if position + 1 < len(lines) else ""
        entry = _ENTRY.fullmatch(line)
        if line and following and set(following) == {"-"}:
            section = line
            read += [] if section == "Parameters" else [f"**{section}**"]
        elif line and set(line) == {"-"}:
            read.append("")
        elif section == "Parameters" and entry:
            read += [f":param {each.strip()}: {entry[2]}" for each in entry[1].split(",")]
        elif _FIELD.fullmatch(line):
            read += [] if section == "Fields" else [""]
            read.append(f"* {line}")
            section = "Fields"
        elif section == "Fields" and line:
            read.append(f"  {line}")
        else:
            ends = section == "Parameters" and line and not line.startswith(" ")
            section = section if line and not ends else ""
            read += ["", line] if ends else [line]
    lines[:] = [_PLURAL.sub(r"\1\\ ", line) for line in read]  # a word may go on behind a name, as in `PartitionSpec`s


class Command(SphinxDirective):
    """The help of a command of `meshwright`, as it prints it."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        os.environ["COLUMNS"] = "88"  # the width that argparse prints for
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
            main([self.arguments[0], "--help"])
        return [nodes.literal_block(said.getvalue(), said.getvalue(), language="text")]


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.add_directive("command", Command)
    app.connect("autodoc-process-docstring", read_docstring)
