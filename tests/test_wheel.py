"""The wheel and the sdist: they contain every file that an installed WOPR needs."""

from __future__ import annotations

import tarfile
from pathlib import Path
from zipfile import ZipFile

from tests.support.wheel import BYTECODE, ROOT, build

PACKAGE = ROOT / "src" / "wopr"


def test_wheel_and_sdist_contain_every_file_of_the_package(tmp_path: Path) -> None:
    wheel, source = build(tmp_path, "sdist", "wheel")

    files = {
        path.relative_to(PACKAGE.parent).as_posix()
        for path in PACKAGE.rglob("*")
        if path.is_file() and BYTECODE not in path.parts
    }
    assert {"wopr/console/templates/run.html", "wopr/console/static/console.css"} <= files
    assert files <= set(ZipFile(wheel).namelist())
    with tarfile.open(source) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    assert {f"src/{file}" for file in files} | {"pyproject.toml", "README.md"} <= names
