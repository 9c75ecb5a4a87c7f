from __future__ import annotations

import base64
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from wopr.process.keys import UnusableHostKey, load_host_key


def test_the_first_start_creates_a_private_file_that_later_starts_read(tmp_path: Path) -> None:
    first = load_host_key(tmp_path / "data", {})
    second = load_host_key(tmp_path / "data", {})

    assert first == second
    assert len(first) == 32
    assert (tmp_path / "data" / "host.key").stat().st_mode & 0o777 == 0o600


def test_only_the_key_file_is_left_behind(tmp_path: Path) -> None:
    load_host_key(tmp_path, {})

    assert [path.name for path in tmp_path.iterdir()] == ["host.key"]


def test_concurrent_starts_agree_on_one_secret(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as starts:
        found = set(starts.map(lambda _: load_host_key(tmp_path, {}), range(32)))

    assert len(found) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["host.key"]


def test_two_data_directories_have_two_secrets(tmp_path: Path) -> None:
    assert load_host_key(tmp_path / "a", {}) != load_host_key(tmp_path / "b", {})


def test_the_environment_takes_precedence_and_writes_nothing(tmp_path: Path) -> None:
    given = base64.b64encode(b"s" * 32).decode()

    assert load_host_key(tmp_path, {"WOPR_HOST_KEY": f" {given}\n"}) == b"s" * 32
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["hunter2!", base64.b64encode(b"hunter2").decode(), "ünïcode"])
def test_a_weak_key_in_the_environment_is_refused_without_repeating_it(
    tmp_path: Path, text: str
) -> None:
    with pytest.raises(UnusableHostKey) as refusal:
        load_host_key(tmp_path, {"WOPR_HOST_KEY": text})

    assert text not in str(refusal.value)


def test_a_file_readable_by_others_is_refused(tmp_path: Path) -> None:
    load_host_key(tmp_path, {})
    (tmp_path / "host.key").chmod(0o644)

    with pytest.raises(UnusableHostKey, match="chmod 600"):
        load_host_key(tmp_path, {})


def test_a_file_of_the_wrong_length_is_refused(tmp_path: Path) -> None:
    load_host_key(tmp_path, {})
    (tmp_path / "host.key").write_bytes(b"short")

    with pytest.raises(UnusableHostKey, match="5 bytes"):
        load_host_key(tmp_path, {})
