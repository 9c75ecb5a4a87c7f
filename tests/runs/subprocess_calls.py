"""Functions for subprocesses. The module imports little, because each subprocess imports it."""

from __future__ import annotations

import os
import time

from wopr.protocol.documents import Json


def sleep(seconds: float) -> Json:
    time.sleep(seconds)
    return None


def environment() -> Json:
    return dict(os.environ)


def process_id() -> Json:
    return os.getpid()


def fill(mebibytes: int) -> Json:
    return len(bytearray(mebibytes * 1024 * 1024))
