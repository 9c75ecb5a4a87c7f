"""Where the host keeps its files on this machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

DATA_DIR_VARIABLE: Final = "WOPR_DATA_DIR"


def data_dir(chosen: Path | None = None) -> Path:
    """The data directory: the chosen one, else `WOPR_DATA_DIR`, else `./data`."""
    return chosen or Path(os.environ.get(DATA_DIR_VARIABLE) or "data")


def database_url(chosen: str | None = None, directory: Path | None = None) -> str:
    """The database: the chosen URL, else a SQLite file in the data directory."""
    return chosen or f"sqlite:///{data_dir(directory) / 'wopr.db'}"


def credentials_path(directory: Path | None = None) -> Path:
    """The file in which `wopr serve` leaves its URL and first key for this machine's user."""
    return data_dir(directory) / "credentials.json"
