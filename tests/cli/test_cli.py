"""The command line: values in text, programs out of files, the commands themselves, and errors in a sentence."""

import argparse
import dataclasses
import json
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
from jax.sharding import PartitionSpec as P

import planner
from planner.cli.main import main
from planner.cli.program_file import load_program
from planner.cli.values import parse_arguments, parse_bytes, parse_mesh, parse_pin, parse_rules, parse_spec
from planner.errors import ArgumentError

PROGRAM = """
import jax
import jax.numpy as jnp

from widths import WIDTH


def step(params, x):
    def loss(params):
        y = x
        for w in params:
            y = jax.nn.relu(y @ w)
        return y.mean()

    return jax.tree.map(lambda w, g: w - 0.1 * g, params, jax.grad(loss)(params))


def small():
    shape = jax.ShapeDtypeStruct
    params = [shape((WIDTH, WIDTH), jnp.float32)] * 2
    return step, (params, shape((64, WIDTH), jnp.float32)), {"donate_argnums": 0}


def odd():
    return step, ([], 3), {"colour": "red"}


def number():
    return 3


def failing():
    return 1 / 0


def forward():
    shape = jax.ShapeDtypeStruct
    weights = [shape((WIDTH, WIDTH), jnp.float32)] * 2
    return lambda weights, x: x @ weights[0] @ weights[1], (weights, shape((32, WIDTH), jnp.float32))
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    """The path of a file that offers programs, and imports from its own folder."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "widths.py").write_text("WIDTH = 128\n")
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    yield path
    for name in ("program", "program_to_plan", "widths"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("14GB", 14e9),
        ("14 gb", 14e9),
        ("15.75GiB", 15.75 * 2**30),
        ("500MB", 5e8),
        ("1.5e10", 1.5e10),
        ("7B", 7.0),
    ],
)
def test_bytes(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("", P()),
        ("x", P("x")),
        ("x,None,(y,z)", P("x", None, ("y", "z"))),
        (" None , ( data , model ) ", P(None, ("data", "model"))),
        ("(x)", P(("x",))),
        ("(),x", P(None, "x")),
        ("x,", P("x")),
    ],
)
def test_spec(text, spec):
    assert parse_spec(text) == spec


def test_pin_mesh_positions():
    assert parse_pin("params/*/kernel=None,model") == ("params/*/kernel", P(None, "model"))
    assert parse_pin("out/0=") == ("out/0", P())
    assert parse_mesh("data=16, model=2") == {"data": 16, "model": 2}
    assert parse_arguments("0, mode") == (0, "mode")
    assert parse_arguments("") == ()


def test_logical_rules():
    assert parse_rules("batch=data") == (("batch", "data"),)
    assert parse_rules(" mlp = model , mlp=( data, model ),embed.in=None") == (
        ("mlp", "model"),
        ("mlp", ("data", "model")),
        ("embed.in", None),
    )


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (parse_bytes, "3 furlongs"),
        (parse_bytes, "GB"),
        (parse_bytes, "1.2.3GB"),
        (parse_mesh, "data:16"),
        (parse_mesh, "data=2,data=4"),
        (parse_pin, "x,None"),
        (parse_pin, "=x"),
        (parse_spec, "x,(y,z"),
        (parse_spec, "x y"),
        (parse_spec, "x,,y"),
        (parse_arguments, "a b"),
        (parse_arguments, "-1"),
        (parse_rules, "batch"),
        (parse_rules, "batch=data,"),
        (parse_rules, "batch=(data,,model)"),
    ],
)
def test_bad_values_are_told(parse, text):
    with pytest.raises(argparse.ArgumentTypeError, match=re.escape(repr(text))):
        parse(text)


def test_program_file(program):
    planned = load_program(f"{program}:small")
    assert planned.keywords == {"donate_argnums": 0}
    assert len(planned.args) == 2
    assert planned.fn.__name__ == "step"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("number", "returned int; return"),
        ("failing", "failed at line 33 with ZeroDivisionError"),
        ("odd", "'colour'"),
        ("absent", "no function 'absent'; it has 'step', 'small'"),
    ],
)
def test_bad_programs_are_told(program, name, message):
    with pytest.raises(ArgumentError, match=message):
        load_program(f"{program}:{name}")


def test_a_file_that_fails_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = tmp_path / "broken_program.py"
    path.write_text("import jax\nx = undefined\n")
    with pytest.raises(ArgumentError, match="line 2 with NameError"):
        load_program(f"{path}:f")
    assert "broken_program" not in sys.modules


def test_search_show_and_bind(program, tmp_path, capsys):
    path = tmp_path / "plan.json"
    code = main(
        [
            *("search", f"{program}:small", "--topology", "v5e:4x4", "--mesh", "data=8,model=2", "--memory", "14GB"),
            *("--pin", "params/*=None,model", "--pin", "x=data", "-o", str(path)),
        ]
    )
    found = capsys.readouterr()
    assert code == 0
    assert "mesh 1/1 data=8 model=2: best" in found.err
    assert "P(None, 'model')" in found.out
    assert json.loads(path.read_text())["mesh"] == {"data": 8, "model": 2}
    assert main(["show", str(path)]) == 0
    assert capsys.readouterr().out == found.out
    planned = load_program(f"{program}:small")
    bound = planner.load(path).bind(planned.fn, planned.args)
    assert bound.in_specs == ([P(None, "model")] * 2, P("data"))


def test_names_of_dims_are_pins_by_logical_rules(program, tmp_path, capsys):
    path = tmp_path / "plan.json"
    asked = ("search", f"{program}:small", "--topology", "v5e:2x4", "--axis-names", "data,model", "--check", "never")
    rules = ("--logical-rules", "batch=data,mlp=model,embed=None")
    code = main([*asked, *rules, "--pin", "x=batch", "--pin", "params/0=embed,mlp", "-o", str(path)])
    assert code == 0, capsys.readouterr().err
    (first, _), x = planner.load(path).decision.in_specs[:2], planner.load(path).decision.in_specs[-1]
    assert (first, x) == (P(None, "model"), P("data"))


def test_a_search_like_a_saved_plan(program, tmp_path, capsys):
    path, pin = str(tmp_path / "step.json"), ("--pin", "params/*=None,(data,model)")
    asked = ("--topology", "v5e:2x4", "--mesh", "data=4,model=2", "--check", "never")
    assert main(["search", f"{program}:small", *asked, *pin, "-o", path]) == 0
    capsys.readouterr()
    assert main(["search", f"{program}:forward", "--like", path, "--check", "never"]) == 0
    told = capsys.readouterr().out
    assert "data=4 x model=2" in told
    assert "lie as in the plan of step: weights as params" in told
    assert "P(None, ('data', 'model'))" in told


def test_pareto_prints_and_saves(program, tmp_path, capsys):
    asked = [
        "pareto",
        f"{program}:small",
        "--topology",
        "v5e:2x2",
        "--mesh",
        "data=4",
        "--points",
        "3",
        "--check",
        "never",
    ]
    folder = tmp_path / "front"
    assert main([*asked, "-o", str(folder)]) == 0
    found = capsys.readouterr()
    assert found.out.startswith("Front of step for v5e:2x2")
    assert "the least memory: mesh 1/1 data=4: best" in found.err
    told = json.loads((folder / "front.json").read_text())
    assert 2 <= len(told["plans"]) <= 3
    assert main(["show", str(folder / "plan_0.json")]) == 0
    assert "Plan of step" in capsys.readouterr().out
    assert main([*asked, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    # How near to the best a plan between the ends is proven to be hangs on the clock.
    same = {"peak_bytes", "time", "mesh", "minimised", "within_bytes"}
    assert [{key: point[key] for key in same} for point in printed["plans"]] == [
        {key: point[key] for key in same} for point in told["plans"]
    ]


def test_search_of_several_topologies_prints_a_table_and_saves(program, tmp_path, capsys):
    asked = ["search", f"{program}:small", "--topology", "v5e:2x2", "--topology", "cpu:2", "--check", "never"]
    folder = tmp_path / "compared"
    assert main([*asked, "-o", str(folder)]) == 0
    found = capsys.readouterr()
    assert found.out.startswith("Topologies for step")
    assert "v5e:2x2: mesh " in found.err
    told = json.loads((folder / "topologies.json").read_text())
    assert {"v5e:2x2", "cpu:2"} < {row["name"] for row in told["rows"]}
    assert main(["show", str(folder / told["rows"][1]["file"])]) == 0
    assert "for cpu:2" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--points", "1"], "points is 1; give a whole number of plans from 2 to 50"),
        (["-o", "."], "holds other files than those of a front"),
        (["--topology", "v9:2"], "unknown topology 'v9:2'"),
    ],
)
def test_errors_of_pareto_are_one_sentence(program, capsys, arguments, message):
    assert main(["pareto", f"{program}:small", *arguments]) == 2
    *_, last = capsys.readouterr().err.strip().splitlines()
    assert last.startswith("meshwright: error: ")
    assert message in last


def test_bad_usage_of_pareto_says_how(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["pareto", "a.py:f", "--points", "many"])
    assert stopped.value.code == 2
    assert "--points" in capsys.readouterr().err


def test_the_command_line_keeps_the_rest_of_the_files_options(program, monkeypatch):
    asked = []

    def noted(fn, args, **keywords):
        asked.append(keywords["options"])
        return SimpleNamespace(checked=(), show=lambda: None)

    monkeypatch.setattr("planner.cli.main.plan", noted)
    text = program.read_text() + "\n\ndef tuned():\n    import planner\n    fn, args, _ = small()\n"
    program.write_text(text + '    return fn, args, {"options": planner.Options(gap=0.25, seed=3, check="never")}\n')
    main(["search", f"{program}:tuned", "--seed", "4"])
    assert (asked[0].gap, asked[0].seed, asked[0].check) == (0.25, 4, "never")


def test_the_command_line_overrides_the_file(program, capsys):
    code = main(["search", f"{program}:small", "--topology", "cpu:2", "--donate", "", "--check", "never"])
    assert code == 0
    assert "reuse donated" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--topology", "v9:2"], "unknown topology 'v9:2'"),
        (["--topology", "v5e:2x2", "--pin", "nothing=x"], "matches no tensor"),
        (["--topology", "v5e:2x2", "--mesh", "x=64"], "needs 64 devices"),
        (["--topology", "v5e:2x2", "--mesh", "x=2", "--memory", "1kB"], "no plan fits"),
        (["--topology", "v5e:2x2", "--time-limit", "-1"], "--time-limit -1.0 is not possible"),
        (["--topology", "v5e:2x2", "-o", "/nowhere/at/all.json"], "no folder"),
    ],
)
def test_errors_are_one_sentence(program, capsys, arguments, message):
    assert main(["search", f"{program}:small", *arguments]) == 2
    *_, last = capsys.readouterr().err.strip().splitlines()
    assert last.startswith("meshwright: error: ")
    assert message in last


def test_show_of_what_is_no_plan(program, capsys):
    assert main(["show", str(program)]) == 2
    assert "is not JSON" in capsys.readouterr().err


def test_bad_usage_says_how(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["search", "a.py:f", "--memory", "lots"])
    assert stopped.value.code == 2
    assert "14GB" in capsys.readouterr().err


def test_help_names_every_unit(capsys):
    for command in ("search", "pareto", "calibrate", "show"):
        with pytest.raises(SystemExit):
            main([command, "--help"])
    words = " ".join(capsys.readouterr().out.split())
    for expected in (
        "seconds for the whole search",
        "in bytes or with a unit",
        "sizes in devices",
        "PATTERN=SPEC",
        "peak per device",
    ):
        assert expected in words


def test_every_option_of_the_library_that_text_can_give_is_an_option_of_the_command_line(program, monkeypatch, capsys):
    asked = []

    def noted(fn, args, *, donate_argnums, options):
        asked.append(options)
        return SimpleNamespace(checked=(), show=lambda: None)

    monkeypatch.setattr("planner.cli.main.plan", noted)
    given = (
        "--gap 0.1 --inputs batch/*,labels --microbatches 4 --affordable-compile 5 --affordable-flops 1e9 --workers 2"
    )
    main(["search", f"{program}:small", *given.split()])
    expected = planner.Options(
        gap=0.1,
        inputs=("batch/*", "labels"),
        microbatches=4,
        affordable_compile_s=5.0,
        affordable_flops=1e9,
        workers=2,
        progress=asked[0].progress,
    )
    assert asked == [expected]
    main(["search", f"{program}:small", "--inputs", "auto", "--microbatches", "auto"])
    assert (asked[1].inputs, asked[1].microbatches) == ("auto", "auto")
    with pytest.raises(SystemExit):
        main(["search", "--help"])
    words = " ".join(capsys.readouterr().out.split())
    left_out = {"share_layers", "progress"}
    for field in dataclasses.fields(planner.Options):
        flag = f"--{field.name.removesuffix('_s').replace('_', '-')}"
        assert (f"{flag} " in words) == (field.name not in left_out), flag


@pytest.mark.slow
def test_calibrate(tmp_path, capsys):
    path = tmp_path / "profile.json"
    assert main(["calibrate", "--budget", "1", "--devices", "2", "-o", str(path)]) == 0
    found = capsys.readouterr()
    assert "all-reduce over 2" in found.out
    assert json.loads(path.read_text())["num_devices"] == 2


def test_module_runs(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "planner", "show", str(tmp_path / "none.json")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    # Plugins of jax may have said something before.
    assert done.stderr.splitlines()[-1].startswith("meshwright: error: ")


def test_calibrate_asks_a_compiler(tmp_path, capsys, monkeypatch):
    """A chip's name stands for a small slice of it; without cycles there is an error."""
    asked = []

    def refuse(topology, *, progress):
        asked.append(topology.name)
        raise ArgumentError("no such compiler")

    monkeypatch.setattr("planner.cli.main.compiler_profile", refuse)
    for name in ("v5e", "v5p", "v5e:2x2"):
        assert main(["calibrate", "--compiler", name, "-o", str(tmp_path / "profile.json")]) == 2
    assert asked == ["v5e:4x4", "v5p:2x2x4", "v5e:2x2"]
    assert "no such compiler" in capsys.readouterr().err
    assert not (tmp_path / "profile.json").exists()


def test_fallbacks_of_a_saved_plan(program, tmp_path, capsys):
    path, folder = str(tmp_path / "plan.json"), tmp_path / "left"
    assert main(["search", f"{program}:small", "--topology", "v5e:2x4", "--check", "never", "-o", path]) == 0
    ask = ["fallbacks", path, f"{program}:small", "--topology", "v5e:2x2", "--check", "never"]
    assert main([*ask, "-o", str(folder)]) == 0
    assert "Fallbacks of" in capsys.readouterr().out
    assert planner.load(folder / "plan_0.json").decision.topology == "v5e:2x2"
    assert main([*ask, "--topology", "v5e:2x1", "--json"]) == 0
    assert [row["topology"] for row in json.loads(capsys.readouterr().out)["rows"]] == ["v5e:2x2", "v5e:2x1"]
    assert main([*ask, "--within", "-1"]) == 2
    assert "within is -1.0; give a share" in capsys.readouterr().err


def test_what_if_of_a_saved_plan(program, tmp_path, capsys):
    path = str(tmp_path / "plan.json")
    search = [
        "search",
        f"{program}:small",
        "--topology",
        "v5e:2x4",
        "--mesh",
        "x=4,y=2",
        "--check",
        "never",
        "-o",
        path,
    ]
    assert main(search) == 0
    capsys.readouterr()
    assert main(["what-if", path, f"{program}:small", "--pin", "params/0=(x,y)"]) == 0
    printed = capsys.readouterr().out
    assert "if params/0 is P(('x', 'y'))" in printed
    assert "everything else is chosen anew" in printed
    assert main(["what-if", path, f"{program}:small", "--mesh", "x=8", "--memory", "1GB", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["mesh_b"] == {"x": 8}
    assert found["fits"] is True
    assert main(["what-if", path, f"{program}:small"]) == 2
    assert "nothing is asked; give pins, mesh or memory_limit" in capsys.readouterr().err
