"""The stamp of a benchmark's JSON."""

from __future__ import annotations

import platform
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from subprocess import run


def stamp() -> dict[str, str]:
    """Where, when and with what the figures were made."""

    def found(package: str) -> str:
        try:
            return version(package)
        except PackageNotFoundError:
            return ""

    root = Path(__file__).resolve().parent.parent
    commit = run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=False).stdout.strip()
    return {
        "machine": platform.machine(),
        "python": platform.python_version(),
        **{name: found(name) for name in ("jax", "jaxlib", "libtpu")},
        "commit": commit,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }
