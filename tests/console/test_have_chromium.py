"""The script that installs Chromium, with replacements for all commands that it calls."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "have_chromium.sh"
# A package manager that records its arguments and its environment.
APT = 'echo "apt-get $* $DEBIAN_FRONTEND" >> "$LOG"\n'
INSTALLS = APT + 'case "$*" in *install*) cp "$BIN/true" "$BIN/chromium";; esac\n'
LACKS_SHELL = 'case "$*" in *headless-shell*) exit 100;; esac\n' + INSTALLS
# Like sudo: the environment is not passed on.
SUDO = 'echo "sudo $*" >> "$LOG"\nshift\nexec env -u DEBIAN_FRONTEND "$@"\n'
NO_SUDO = "exit 1\n"


class Machine:
    """A machine that has only what a test installs."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.log = folder / "log"
        self.log.touch()
        for name in ("bash", "env", "cat", "cp", "true"):
            (self.bin / name).symlink_to(str(shutil.which(name)))

    def has(self, name: str, script: str = "") -> None:
        file = self.bin / name
        file.write_text(f"#!{self.bin}/bash\n{script}")
        file.chmod(0o755)

    def run(self, **variables: str) -> subprocess.CompletedProcess[str]:
        own = {"PATH": str(self.bin), "BIN": str(self.bin), "LOG": str(self.log)}
        return subprocess.run(
            [self.bin / "bash", SCRIPT],
            env=own | variables,
            capture_output=True,
            text=True,
            check=False,
        )

    @property
    def calls(self) -> list[str]:
        return self.log.read_text().splitlines()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_an_installed_chromium_is_not_changed(machine: Machine) -> None:
    machine.has("chromium-browser")
    machine.has("apt-get", INSTALLS)

    done = machine.run()

    assert (done.returncode, done.stderr, machine.calls) == (0, "", [])


def test_root_installs_chromium(machine: Machine) -> None:
    machine.has("id", "echo 0")
    machine.has("apt-get", INSTALLS)

    done = machine.run(CI="true")

    assert done.returncode == 0, done.stderr
    assert machine.calls[0] == "apt-get -qq update noninteractive"
    assert "install -y --no-install-recommends chromium-headless-shell" in machine.calls[1]


def test_a_system_without_the_smaller_package_gets_the_whole_browser(machine: Machine) -> None:
    machine.has("id", "echo 0")
    machine.has("apt-get", LACKS_SHELL)

    done = machine.run(CI="true")

    assert done.returncode == 0, done.stderr
    assert "install -y --no-install-recommends chromium fonts-dejavu-core" in machine.calls[1]


def test_a_user_with_sudo_installs_chromium_without_a_prompt(machine: Machine) -> None:
    machine.has("id", "echo 1000")
    machine.has("sudo", SUDO)
    machine.has("apt-get", INSTALLS)

    done = machine.run()

    assert done.returncode == 0, done.stderr
    installed = [call for call in machine.calls if call.startswith("apt-get")]
    assert [call.rpartition(" ")[2] for call in installed] == ["noninteractive"] * 2
    assert all("-n" in call for call in machine.calls if call.startswith("sudo"))


@pytest.mark.parametrize(
    ("user", "tools", "why"),
    [
        ("0", {}, "this system has no apt-get"),
        ("1000", {"apt-get": INSTALLS}, "installing it needs root"),
        ("1000", {"apt-get": INSTALLS, "sudo": NO_SUDO}, "installing it needs root"),
        ("0", {"apt-get": "exit 100\n"}, "apt-get could not install it"),
        ("0", {"apt-get": APT}, "apt-get could not install it"),
    ],
)
@pytest.mark.parametrize("ci", ["true", ""])
def test_without_root_or_sudo_it_explains_and_fails_in_ci_only(
    machine: Machine, user: str, tools: dict[str, str], why: str, ci: str
) -> None:
    machine.has("id", f"echo {user}")
    for name, script in tools.items():
        machine.has(name, script)

    done = machine.run(CI=ci)

    assert done.returncode == (1 if ci else 0)
    assert f"There is no chromium: {why}" in done.stderr
    assert "sudo apt-get install chromium" in done.stderr
