"""Flags of XLA for processes that tests start: those of the tests, which compile quickly, for other numbers of devices."""

from __future__ import annotations

import os
import re

COUNT = "--xla_force_host_platform_device_count"


def with_devices(count: int) -> str:
    """The flags of this process with so many virtual devices."""
    others = re.sub(rf"{COUNT}=\d+", "", os.environ.get("XLA_FLAGS", ""))
    return f"{others} {COUNT}={count}".strip()
