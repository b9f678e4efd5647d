"""Flags of XLA for processes that tests start: those of the tests, which compile quickly, for other numbers of devices."""

from __future__ import annotations

import os
import re

COUNT = "--xla_force_host_platform_device_count"


def without_devices() -> str:
    """The flags of this process, without a number of virtual devices."""
    return re.sub(rf"{COUNT}=\d+", "", os.environ.get("XLA_FLAGS", "")).strip()


def with_devices(count: int) -> str:
    """The flags of this process with so many virtual devices."""
    return f"{without_devices()} {COUNT}={count}".strip()
