"""WOPR installed like by a user: a wheel in an environment with the declared dependencies only."""

from __future__ import annotations

import subprocess
import sys
import venv
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent.parent
BYTECODE = "__pycache__"


def build(folder: Path, *targets: str) -> list[Path]:
    """Build the wheel or the sdist, or both, into a folder."""
    options = [option for target in targets for option in ("--target", target)]
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", *options, "--directory", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return sorted(folder.iterdir())


def install(wheel: Path, folder: Path) -> Path:
    """Install a wheel into a new environment and return the folder of its commands.

    The dependencies come from the environment that runs the tests, so no network is needed. Only
    those that the project declares are linked: a missing declaration shows as a failed import.
    """
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    [packages] = (folder / "lib").glob("python*/site-packages")
    for dependency in dependencies("wopr"):
        _link(dependency, packages)
    done = subprocess.run(
        ["uv", "pip", "install", "--offline", "--no-deps", "--python", str(python), str(wheel)],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": str(Path(sys.executable).parent), "UV_NO_CONFIG": "1"},
    )
    assert done.returncode == 0, done.stderr
    return folder / "bin"


def dependencies(name: str) -> list[Distribution]:
    """Return the installed distributions that a package needs, without extras that it only offers."""
    found: dict[str, Distribution] = {}
    pending = [(Requirement(name), "")]
    seen: set[tuple[str, str]] = set()
    while pending:
        requirement, extra = pending.pop()
        package = distribution(requirement.name)
        found[requirement.name.lower()] = package
        for line in package.requires or ():
            needed = Requirement(line)
            if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                for each in ("", *needed.extras):
                    if (needed.name.lower(), each) not in seen:
                        seen.add((needed.name.lower(), each))
                        pending.append((needed, each))
    del found[name]
    return list(found.values())


def _link(package: Distribution, packages: Path) -> None:
    for file in package.files or ():
        if ".." in file.parts or BYTECODE in file.parts:
            continue
        target = packages / file
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            target.symlink_to(Path(str(package.locate_file(file))))
