"""What runs in a fork of the server runs as a process of Python's does."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

from tests.fork_server import commands, python


def _run(*words: str, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*python(), *words], capture_output=True, text=True, check=False, **more)


def test_arguments_streams_folder_and_environment_are_those_of_the_command(tmp_path: Path) -> None:
    program = "import os, sys; print(sys.argv, os.getcwd(), os.environ['NEW'], input()); print('bad', file=sys.stderr)"
    done = _run("-c", program, "a", cwd=tmp_path, env={**os.environ, "NEW": "here"}, input="read")
    assert done.stdout == f"['-c', 'a'] {tmp_path} here read\n"
    assert done.stderr == "bad\n"
    assert done.returncode == 0


def test_scripts_and_modules_find_what_lies_beside_them(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("NAME = 'beside'")
    (tmp_path / "script.py").write_text(
        "import beside, sys\nif __name__ == '__main__':\n    print(beside.NAME, sys.argv)"
    )
    assert _run(str(tmp_path / "script.py"), "a").stdout == f"beside ['{tmp_path}/script.py', 'a']\n"
    assert _run("-c", "import beside; print(beside.NAME)", cwd=tmp_path).stdout == "beside\n"
    assert _run("-m", "script", "a", cwd=tmp_path).stdout == f"beside ['{tmp_path}/script.py', 'a']\n"


def test_it_ends_as_the_command_does() -> None:
    assert _run("-c", "raise SystemExit(3)").returncode == 3
    assert _run("-c", "import os; os.abort()").returncode == -signal.SIGABRT
    failed = _run("-c", "1 / 0")
    assert failed.returncode == 1
    assert failed.stderr.endswith("ZeroDivisionError: division by zero\n")


def test_who_is_killed_takes_its_command_along() -> None:
    program = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    with subprocess.Popen([*python(), "-c", program], stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        assert int(client.stdout.readline()) != client.pid
        client.kill()
        assert client.stdout.read() == "", "it ends when the last process that writes to it has ended"


def test_devices_are_as_the_environment_says() -> None:
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=3"}
    assert _run("-c", "import jax; print(len(jax.devices()))", env=environment).stdout == "3\n"


def test_commands_of_a_shell() -> None:
    environment = {**os.environ, "PATH": f"{commands()}{os.pathsep}{os.environ['PATH']}"}
    text = "python -c 'print(1)' && meshwright show none.json"
    done = subprocess.run(["bash", "-c", text], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "1\n"
    assert done.stderr.startswith("meshwright: error: ")
    assert done.returncode == 2
