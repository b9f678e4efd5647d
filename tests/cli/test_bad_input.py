"""Whatever a command is given: a sentence with a hint on the standard error, exit code 2, and no traceback."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import planner
from planner.cli.main import main

PROGRAM = """
import jax, jax.numpy as jnp
import planner

X = jax.ShapeDtypeStruct((8, 8), jnp.float32)

def good(): return lambda x: x @ x, (X,)
def other(): return lambda x: x + 1, (X,)
def sharded(): return lambda x: x @ x, (X,), {"in_shardings": jax.sharding.PartitionSpec("x"), "topology": "v5e:2x2"}
def odd_shardings(): return lambda x: x @ x, (X,), {"in_shardings": (3,)}
def odd_axis(): return lambda x: x @ x, (X,), {"in_shardings": jax.sharding.PartitionSpec("y")}
def twice(): return lambda x: x @ x, (X,), {"in_shardings": jax.sharding.PartitionSpec("x", "x")}
def indivisible(): return lambda x: x @ x, (X,), {"in_shardings": jax.sharding.PartitionSpec("x")}
def too_long(): return lambda x: x @ x, (X,), {"in_shardings": (None, None)}
def nothing(): return None
def three(): return 1, 2, 3
def not_args(): return (lambda x: x), X
def raises(): return [][1]
def leaves(): raise SystemExit(7)
def needs(x): return x
def untraceable(): return (lambda x: 1 if x[0, 0] > 0 else 2), (X,)
def text(): return (lambda x: x), ("text",)
def too_many(): return (lambda x: x), (X, X)
def odd_keyword(): return (lambda x: x), (X,), {"colour": 1}
def odd_options(): return (lambda x: x), (X,), {"options": {"check": "never"}}
def odd_mesh(): return (lambda x: x), (X,), {"mesh": 3}
def odd_devices(): return (lambda x: x), (X,), {"devices": "cpu"}
def odd_pins(): return (lambda x: x), (X,), {"pins": [1]}
def odd_objective(): return (lambda x: x), (X,), {"objective": 3}
def odd_limit(): return (lambda x: x), (X,), {"memory_limit": "14 furlongs"}
def odd_rules(): return (lambda x: x), (X,), {"logical_rules": 3}
def odd_names(): return (lambda x: x), (X,), {"axis_names": 3}
def odd_donation(): return (lambda x: x), (X,), {"donate_argnums": "x"}
def odd_parts(): return (lambda x: x), (X,), {"process_local": 3}
def odd_like(): return (lambda x: x), (X,), {"like": 3}
def deep():
    def f(x): return f(x)
    return f, (X,)
value = 3
"""
FILES = {
    "program.py": PROGRAM,
    "broken.py": "def (",
    "raising.py": "1 / 0",
    "leaving.py": "import sys; sys.exit(3)",
    "empty.py": "",
    "text.json": "once upon a time",
    "other.json": '{"format": "something else"}',
    "deep.json": "[" * 100_000,
    "bytes.json": "\udcff",
}
PLANNING = ("search", "pareto")
COMPARED = "--topology v5e:2x4"
"""What makes a search for one topology one for two."""
GOOD = "program.py:good --topology v5e:2x2"
OF_BOTH = (
    "program.py", ":good", "program.py:", "none.py:good", "folder:good", "text.json:good", "program.py:absent",
    "program.py:value", "broken.py:f", "raising.py:f", "leaving.py:f", "empty.py:f", f"{'a' * 300}:good",
    *(f"program.py:{name} --topology v5e:2x2" for name in (
        "nothing", "three", "not_args", "raises", "leaves", "needs", "untraceable", "text", "too_many", "odd_keyword",
        "odd_options", "odd_mesh", "odd_devices", "odd_pins", "odd_objective", "odd_limit", "odd_rules", "odd_names",
        "odd_donation", "odd_parts", "odd_like", "deep",
    )),
    "program.py:good --topology nonsense", "program.py:good --topology v5e:", "program.py:good --topology v5e:0x4",
    "program.py:good --topology v5e:99x99", f"program.py:good --topology cpu:{'9' * 5000}", "program.py:good --topology ",
    f"{GOOD} --mesh x=0", f"{GOOD} --mesh x=3", f"{GOOD} --mesh x=64", f"{GOOD} --mesh x", f"{GOOD} --mesh x=2,x=2",
    f"{GOOD} --mesh x={'9' * 300}", f"{GOOD} --mesh ",
    f"{GOOD} --memory 0", f"{GOOD} --memory -1", f"{GOOD} --memory lots", f"{GOOD} --memory nan", f"{GOOD} --memory 1B",
    f"{GOOD} --pin x", f"{GOOD} --pin x=(y", f"{GOOD} --pin none=x", f"{GOOD} --pin x=absent", f"{GOOD} --pin x=x,y,z",
    f"{GOOD} --pin x=x,x",
    *(f"{GOOD} --logical-rules {words}" for words in (
        "", "batch", "batch=", "=data", "batch=data,", "batch=(data", "batch=data;mlp=model", "a=1", "a=(x,,1)",
    )),
    f"{GOOD} --pin x=batch --logical-rules batch=absent", f"{GOOD} --pin x=rows --logical-rules batch=x",
    *(f"{GOOD} --axis-names {words}" for words in ("", "x,", "x,x", "1", "a,b,c,d", "x --mesh x=4", "x --pin x=y")),
    *(f"{GOOD} --like {words}" for words in (
        "none.json", "text.json", "other.json", "bytes.json", "folder", "saved.json --mesh x=2,y=2,z=1",
        "saved.json --topology v5e:2x4", "saved.json --axis-names a", "unlike.json",
    )),
    *(f"{GOOD} --microbatches {words}" for words in ("0", "-1", "x", "1.5", "7")),
    *(f"{GOOD} --remat {words}" for words in ("", "some")),
    f"{GOOD} --donate 9", f"{GOOD} --donate -1", f"{GOOD} --donate a", f"{GOOD} --static 9",
    f"{GOOD} --static 0 --donate 0",
    f"{GOOD} --time-limit 0", f"{GOOD} --time-limit nan", f"{GOOD} --time-limit soon", f"{GOOD} --check maybe",
    f"{GOOD} --autotune maybe", f"{GOOD} --cost-model guessed", f"{GOOD} --max-axes 0", f"{GOOD} --max-axes 9",
    f"{GOOD} --seed -1", f"{GOOD} --seed x", f"{GOOD} --while-trips 0", f"{GOOD} --while-trips nan",
    f"{GOOD} --cost-model measured --profile none.json", f"{GOOD} --cost-model measured --profile text.json",
    f"{GOOD} --cost-model measured --profile folder", f"{GOOD} --objective beauty", f"{GOOD} --cache text.json",
    f"{GOOD} --absent", "program.py:odd_pins --topology v5e:2x2 --pin x=x", "",
)  # fmt: skip
ONE_ONLY = (*(words for words in OF_BOTH if "--topology" not in words), f"{GOOD} --mesh x=3")
"""Those that name no topology, or are wrong for one of two only."""
CASES = (
    *(f"{command} {words}" for command in PLANNING for words in OF_BOTH),
    *(f"search {words} {COMPARED}{more}" for words in OF_BOTH if words not in ONE_ONLY for more in ("", " --json")),
    *(f"search {GOOD} {COMPARED} {words}" for words in (
        "--topology nonsense", "--topology v5e:2x4", "-o text.json/x", "-o program.py", f"-o {'a' * 300}", "-o folder/..",
        "-o mine", "--like saved.json --json", "--points 3", "--memory 1B --json",
    )),
    f"search {GOOD} -o folder", f"search {GOOD} -o {'a' * 300}", f"search {GOOD} -o {'a' * 300}/b",
    f"pareto {GOOD} -o {'a' * 300}", f"calibrate -o {'a' * 300}", f"search {GOOD} -o none/of/these",
    f"search {GOOD} --topology v5e:2x2", f"search {GOOD} --topology nonsense", f"search {GOOD} --json",
    f"search {GOOD} --topology v5e:2x4 -o text.json", f"search {GOOD} --topology v5e:2x4 -o folder/more -o .",
    "search program.py:odd_devices --topology v5e:2x2 --topology v5e:2x4", f"search {GOOD} --topology v5e:2x4 --memory 1B",
    f"pareto {GOOD} -o text.json", f"pareto {GOOD} --points 0", f"pareto {GOOD} --points x",
    f"pareto {GOOD} --autotune compile",
    f"pareto {GOOD} --objective memory",
    "show", "show none.json", "show folder", "show text.json", "show other.json", "show deep.json", "show bytes.json",
    f"show {'a' * 300}", "show a b", "show text.json --json",
    "explain", "explain none.json", "explain text.json program.py:good", "explain other.json program.py:good --json",
    *(f"explain saved.json{words}" for words in (
        " program.py", " absent", " absent --json", " :good", " program.py:", " none.py:good",
        " program.py:raises", " program.py:too_many", " program.py:other",
        " program.py:good absent", " program.py:good x y",
    )),
    "report", "report none.json", "report text.json", "report deep.json --json",
    *(f"report saved.json {words}" for words in (
        "-o folder", "program.py", "program.py:other", "a b", "-o text.json/x", "program.py:good -o folder", "--absent",
    )),
    *(f"report saved.json -o {words}" for words in ("program.py/page.html", f"{'a' * 300}.html")),
    *(f"{command} {words}" for command in ("show", "report", "explain", "compare saved.json") for words in (
        "half.json", "half.json --json", "mesh.json", "mesh.json --json", "leaf.json", "number.json", "list.json --json",
    )),
    *(f"audit program.py:{words} --topology v5e:2x2" for words in (
        "odd_shardings --mesh x=4", "odd_axis --mesh x=4", "odd_axis --mesh x=4 --json", "twice --mesh x=4",
        "indivisible --mesh x=3", "raises", "nothing", "untraceable", "text --mesh x=4", "odd_devices --mesh x=4",
    )),
    "audit", "audit program.py:good --topology v5e:2x2", "audit program.py:good --json", "audit none.py:good",
    *(f"audit program.py:{words}" for words in (
        "sharded", "sharded --mesh x", "sharded --mesh x=64", "sharded --mesh y=4", "sharded --memory lots --mesh x=4",
        "odd_keyword --mesh x=4", "odd_options --mesh x=4", "too_long --mesh x=4", "sharded --time-limit 0 --mesh x=4",
    )),
    "compare", "compare saved.json", "compare none.json saved.json", "compare deep.json saved.json --json",
    *(f"compare saved.json {words}" for words in ("text.json", "folder", "saved.json saved.json", "saved.json --absent")),
    "calibrate --budget 0", "calibrate --budget -1", "calibrate --budget nan", "calibrate --budget x",
    "calibrate --devices 0", "calibrate --devices -1", "calibrate --devices 99", "calibrate --devices x",
    "calibrate --seed -1", "calibrate --compiler nonsense", "calibrate --compiler v5e:0x0", "calibrate --compiler h100:8",
    "calibrate -o folder", "calibrate -o program.py", "calibrate -o none/of.json",
    f"search {GOOD} -o program.py", f"search {GOOD} -o text.json", f"search {GOOD} -o other.json",
    *(f"report saved.json -o {words}" for words in ("program.py", "saved.json", "none/of.html")),
    f"pareto {GOOD} -o none/of", f"search {GOOD} {COMPARED} -o none/of",
    "", "absent", "--absent",
)  # fmt: skip
HINT = re.compile(r"; |\buse\b|\bgive\b|\bmake\b|\bwrite\b|\bchoose from\b|required|unrecognized|invalid|expected|see ")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The file of a plan of the good program."""
    path = tmp_path_factory.mktemp("saved") / "saved.json"
    x = jax.ShapeDtypeStruct((8, 8), jnp.float32)
    pins = {"x": jax.sharding.PartitionSpec("x")}
    options = planner.Options(check="never")
    planner.plan(lambda x: x @ x, (x,), topology="v5e:2x2", mesh={"x": 4}, pins=pins, options=options).save(path)
    return path.read_text()


@pytest.fixture(scope="module")
def unlike(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The file of a plan that has no array in common with the good program."""
    path = tmp_path_factory.mktemp("unlike") / "unlike.json"
    y = jax.ShapeDtypeStruct((4,), jnp.int32)
    planner.plan(lambda y: y.sum(), (y,), topology="v5e:2x2", options=planner.Options(check="never")).save(path)
    return path.read_text()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saved: str, unlike: str) -> Iterator[Path]:
    """The current folder, with programs, a plan, and files that are none of these."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("planner.cli.main.calibrate", lambda *_, **__: pytest.fail("measures"))
    (tmp_path / "folder").mkdir()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("all of it")
    garbled = {
        "half.json": saved[: len(saved) // 2],
        "mesh.json": saved.replace('"mesh": {"x"', '"mesh": {"q"'),
        "leaf.json": saved.replace('"itemsize": 4', '"itemsize": -4'),
        "number.json": saved.replace('"peak_bytes": ', '"peak_bytes": 1e999, "old": '),
        "list.json": "[1, 2]",
        "unlike.json": unlike,
    }
    before = set(sys.modules)
    for name, text in {**FILES, **garbled, "saved.json": saved}.items():
        (tmp_path / name).write_text(text, encoding="utf-8", errors="surrogateescape")
    yield tmp_path
    for name in {"program", "program_to_plan", "empty"} - before:
        sys.modules.pop(name, None)


def test_what_is_printed_for_programs_parses(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*f"pareto {GOOD} --points 2 --check never --json".split()]) == 0
    assert json.loads(capsys.readouterr().out)
    assert main([*f"search {GOOD} --topology cpu:2 --check never --json".split()]) == 0
    assert json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    "words",
    [
        "show saved.json",
        "explain saved.json",
        "explain saved.json x",
        "explain saved.json program.py:good",
        "explain saved.json program.py:good x",
        "compare saved.json saved.json",
    ],
)
def test_what_is_printed_of_saved_plans_parses(words: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(constant: str) -> None:
        pytest.fail(f"{constant} is no JSON")

    assert main([*words.split(), "--json"]) == 0
    assert json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert main(words.split()) == 0
    assert capsys.readouterr().out.strip()


def test_an_audit_is_printed_as_text_and_as_data(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["audit", "program.py:sharded", "--mesh", "x=4"]
    assert main(asked) == 0
    assert "best completion" in capsys.readouterr().out
    assert main([*asked, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["own"]["mesh"] == {"x": 4}
    assert main([*asked, "--check", "never"]) == 0
    assert "Options(check='never')" in capsys.readouterr().out


def test_a_page_is_written_and_told_as_data(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "saved.json"]) == 0
    assert "Not in the plan's file" in (folder / "saved.html").read_text()
    assert main(["report", "saved.json", "program.py:good", "-o", "with.html"]) == 0
    assert "Not in the plan's file" not in (folder / "with.html").read_text()
    capsys.readouterr()
    assert main(["report", "saved.json", "program.py:good", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["has_program"]
    assert told["memory"]["peak_bytes"] == told["plan"]["predicted"]["peak_bytes"]
    assert main(["report", "saved.json", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["memory"] is None


def test_only_what_a_command_wrote_is_overwritten(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    search = ["search", *GOOD.split(), "--check", "never", "-o"]
    (folder / "empty.json").touch()
    for name in ("empty.json", "saved.json"):
        assert main([*search, name]) == 0
    assert main([*search, "text.json"]) == 2
    assert (folder / "text.json").read_text() == FILES["text.json"]
    assert main([*search, "text.json", "--force"]) == 0
    assert planner.load(folder / "text.json").decision.function_name == "<lambda>"


def test_a_page_is_not_replaced_by_one_that_shows_less(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "saved.json"]) == 0
    assert main(["report", "saved.json"]) == 0
    assert main(["report", "saved.json", "program.py:good"]) == 0
    fuller = (folder / "saved.html").read_text()
    capsys.readouterr()
    assert main(["report", "saved.json"]) == 2
    assert "shows more than a page of the plan alone" in capsys.readouterr().err
    assert (folder / "saved.html").read_text() == fuller
    assert main(["report", "saved.json", "program.py:good"]) == 0
    assert main(["report", "saved.json", "--force"]) == 0
    assert (folder / "saved.html").read_text() != fuller


@pytest.mark.parametrize("words", CASES, ids=lambda words: words[:60])
def test_bad_input_is_told_in_a_sentence(words: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main(words.split(" ") if words else [])
    except SystemExit as stopped:
        code = stopped.code
    out, err = capsys.readouterr()
    told = [line for line in err.splitlines() if re.match(r"meshwright( \w+)?: error: ", line)]
    assert code == 2, err[-500:]
    assert len(told) == 1
    assert told[0] == err.splitlines()[-1]
    assert HINT.search(told[0]), told[0]
    assert len(told[0]) < 1500
    assert "Traceback" not in err
    assert not out
    assert (folder / "mine" / "thesis.tex").exists()
    assert (folder / "program.py").read_text() == PROGRAM
