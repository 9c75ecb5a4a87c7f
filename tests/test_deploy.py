"""The deployment files refer only to existing commands, settings and metrics."""

from __future__ import annotations

import configparser
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml

from tests.support.client import Wire
from tests.support.host import WOPR
from tests.support.postgres.cluster import Cluster, running_cluster
from tests.support.postgres.databases import Databases
from tests.support.postgres.server import SETTINGS
from tools.dependencies import LOCK, read_lock
from wopr.process.metrics import Metrics

DEPLOY = Path(__file__).parents[1] / "deploy"
UNITS = ("wopr.service", "wopr-worker.service")
# Metrics that operators of several processes monitor.
SHARED = {
    "wopr_append_seconds",
    "wopr_lease_age_seconds",
    "wopr_queue_age_seconds",
    "wopr_queue_depth",
    "wopr_runs_held",
    "wopr_runs_rescued",
}
# Passwords and keys with characters that are special in a shell, a URL or SQL.
SECRETS = {
    "WOPR_OWNER_PASSWORD": "the owner's: /@%20",
    "WOPR_APP_PASSWORD": 'the "app"\'s $HOME',
    "WOPR_HOST_KEY": "bXkgMzIgYnl0ZXMgYXJlIG5vdCByYW5kb20gYXQgYWxs",
    "WOPR_API_KEYS": "wopr_of_my_own_choice_0123456789:acme:admin",
}
_METRIC = re.compile(r"wopr_[a-z_]+")


def image_file() -> str:
    return (DEPLOY / "Dockerfile").read_text()


def compose() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return document


def test_the_dashboard_queries_metrics_that_hosts_export() -> None:
    asked = set(_METRIC.findall((DEPLOY / "grafana-dashboard.json").read_text()))
    exported = {family.name for family in Metrics().registry.collect()}
    named = {re.sub("_(total|bucket|count)$", "", name) for name in asked}

    assert named <= exported
    assert named >= SHARED


def test_no_panels_of_the_dashboard_overlap() -> None:
    panels = json.loads((DEPLOY / "grafana-dashboard.json").read_text())["panels"]

    cells = [
        (x, y)
        for each in panels
        for x in range(each["gridPos"]["x"], each["gridPos"]["x"] + each["gridPos"]["w"])
        for y in range(each["gridPos"]["y"], each["gridPos"]["y"] + each["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells))
    assert len({each["id"] for each in panels}) == len(panels)


def test_the_composition_has_two_servers_two_workers_and_one_of_each_other_service() -> None:
    services = compose()["services"]

    kinds = [each["command"][0] for each in services.values() if each.get("image") == "wopr"]
    assert sorted(kinds) == ["doctor", "serve", "serve", "worker", "worker"]
    assert {"postgres", "balancer"} <= services.keys()


def test_images_are_named_without_a_registry() -> None:
    for service in compose()["services"].values():
        assert re.fullmatch(r"[a-z]+(:\d+)?", service["image"])


def test_no_secret_is_in_the_deployment_files() -> None:
    environment = compose()["x-environment"]

    secrets = [name for name in environment if "KEY" in name or "PASSWORD" in name]
    assert len(secrets) == 3
    for name in secrets:
        assert re.fullmatch(r"\$\{WOPR_[A-Z_]+:\?\}", environment[name]), name


def test_api_processes_execute_nodes_too() -> None:
    services = compose()["services"]

    commands = [
        each["command"] for each in services.values() if each.get("command", [""])[0] == "serve"
    ]
    assert commands == [["serve"], ["serve"]]


def test_the_database_is_healthy_only_when_it_accepts_tcp_connections() -> None:
    assert "--host=127.0.0.1" in compose()["services"]["postgres"]["healthcheck"]["test"]


def test_a_password_is_never_inserted_into_a_url_or_a_statement() -> None:
    pasted = re.findall(
        r"(?:://|PASSWORD ')[^\n]*\$\{[A-Z_]*PASSWORD", (DEPLOY / "compose.yaml").read_text()
    )

    assert pasted == []


def test_the_roles_of_the_composition_are_created_with_any_password(databases: Databases) -> None:
    script = compose()["configs"]["roles"]["content"].replace("$$", "$")
    password = 'it\'s "a" $HOME/@:%20 \\ `id` ;--'

    with running_cluster(SETTINGS) as cluster:
        hba = cluster.data / "pg_hba.conf"
        hba.write_text(f"local all wopr_app scram-sha-256\n{hba.read_text()}")
        environment = {
            "PATH": f"{cluster.binaries}:{os.defpath}",
            "PGHOST": str(cluster.folder),
            "WOPR_OWNER_PASSWORD": "owner's",
            "WOPR_APP_PASSWORD": password,
        }
        subprocess.run(["sh", "-ec", script], env=environment, check=True, capture_output=True)
        url = f"host={cluster.folder} dbname=wopr user=wopr_app"
        with psycopg.connect(cluster.url, autocommit=True) as admin:
            admin.execute("SELECT pg_reload_conf()")
        psycopg.connect(url, password=password).close()

        with pytest.raises(psycopg.OperationalError, match="authentication failed"):
            psycopg.connect(url, password="another")


def test_the_image_is_built_only_from_the_copied_files() -> None:
    sent = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", image_file(), re.MULTILINE)

    admitted = {line.removeprefix("!") for line in sent if line.startswith("!")}
    assert "*" in sent
    assert {name.split("/")[0] for names in copied for name in names.split()} == admitted


def test_the_base_of_the_image_is_named_by_its_digest() -> None:
    [base] = re.findall(r"^ARG PYTHON_IMAGE=(\S+)$", image_file(), re.MULTILINE)

    assert re.fullmatch(r"python:3\.\d+-slim@sha256:[0-9a-f]{64}", base)
    assert set(re.findall(r"^FROM (\S+)", image_file(), re.MULTILINE)) == {"${PYTHON_IMAGE}"}


def test_the_image_runs_as_a_numbered_user_other_than_root() -> None:
    final = image_file().rpartition("\nFROM ")[2]

    [user] = re.findall(r"^USER (\d+):(\d+)$", final, re.MULTILINE)
    assert 0 not in map(int, user)
    assert final.index("USER ") < final.index("ENTRYPOINT ")
    # Later steps run as that user too.
    assert "RUN " not in final[final.index("USER ") :]


def test_the_image_is_installed_from_the_lock_with_hashes_and_contains_no_installer() -> None:
    build, _, final = image_file().rpartition("\nFROM ")

    assert (
        "--require-hashes --no-deps --only-binary :all: --requirement requirements/serve.lock"
        in build
    )
    assert "pip uninstall --yes editables hatchling" in build
    assert "pip install" not in final
    assert "pip uninstall --yes --root-user-action=ignore pip" in final


def test_the_image_removes_exactly_the_build_tools_that_nothing_else_needs() -> None:
    [removed] = re.findall(r"pip uninstall --yes ([a-z -]+) pip$", image_file(), re.MULTILINE)
    names = set(removed.split())

    entries = {entry.name: entry for entry in read_lock(LOCK.read_text())}
    needed_by = {user for name in names for user in entries[name].needed_by}
    assert needed_by <= names | {"wopr (pyproject.toml:build)"}


def test_the_health_check_of_the_image_uses_the_served_port() -> None:
    text = image_file()

    [port] = re.findall(r"WOPR_PORT=(\d+)", text)
    assert f"EXPOSE {port}" in text
    [check] = re.findall(r'HEALTHCHECK [^\[]*(\[.*?"\])', text.replace("\\\n", ""), re.DOTALL)
    _, _, program = json.loads(check)
    compile(program, "healthcheck", "exec")
    assert "os.environ['WOPR_PORT']" in program


@pytest.mark.timeout(300)
def test_the_commands_of_the_composition_work_in_their_order(tmp_path: Path) -> None:
    services = compose()["services"]
    with running_cluster(SETTINGS) as cluster:
        roles = compose()["configs"]["roles"]["content"].replace("$$", "$")
        environment = {"PATH": f"{cluster.binaries}:{os.defpath}", "PGHOST": str(cluster.folder)}
        subprocess.run(["sh", "-ec", roles], env=environment | SECRETS, check=True)
        _require_passwords(cluster)

        schema = _command(services["schema"], cluster, tmp_path / "schema")
        done = subprocess.run(**schema, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr

        with ExitStack() as running:
            api, worker = (
                running.enter_context(_started(services[name], cluster, tmp_path / name))
                for name in ("api-1", "worker-1")
            )
            key = SECRETS["WOPR_API_KEYS"].partition(":")[0]
            with Wire(api, key) as wire:
                ended = wire.run("hello", {"name": "Ada"})
                processes = wire.document("/v1/processes")["processes"]
            assert ended["status"] == "completed"
            assert {each["kind"] for each in processes} == {"api", "worker"}
            for url, name in ((api, "api-1"), (worker, "worker-1")):
                _check_health(services[name], url)


def _require_passwords(cluster: Cluster) -> None:
    """Require the passwords of the composition's logins, like its image does."""
    hba = cluster.data / "pg_hba.conf"
    logins = "local all wopr_owner,wopr_app scram-sha-256"
    hba.write_text(f"{logins}\n{hba.read_text()}")
    with psycopg.connect(cluster.url, autocommit=True) as admin:
        admin.execute("SELECT pg_reload_conf()")


def _command(service: dict[str, Any], cluster: Cluster, data: Path) -> dict[str, Any]:
    """Return the command and environment of a service, with this server and any port."""
    given = {
        name: re.sub(r"\$\{(\w+):\?\}", lambda found: SECRETS[found[1]], value)
        for name, value in service["environment"].items()
    }
    given["WOPR_DB"] = given["WOPR_DB"].replace("@postgres/", "@/") + f"?host={cluster.folder}"
    # Of the image.
    given |= {"WOPR_DATA_DIR": str(data), "WOPR_LOG_FORMAT": "json"}
    arguments = [re.sub(r"^\d+$", "0", each) for each in service["command"]]
    if arguments == ["serve"]:
        arguments += ["--port", "0"]
    return {"args": [WOPR, *arguments], "env": {"PATH": os.environ["PATH"]} | given}


@contextmanager
def _started(service: dict[str, Any], cluster: Cluster, data: Path) -> Iterator[str]:
    """Run a service, and return the address that it prints."""
    how = _command(service, cluster, data)
    with subprocess.Popen(**how, stdout=subprocess.PIPE, text=True) as process:
        try:
            found = (re.search(r"on (http://[^/\s]+)", line) for line in process.stdout or ())
            yield next(each[1] for each in found if each)
        finally:
            process.terminate()
    assert process.returncode == 0


def _check_health(service: dict[str, Any], url: str) -> None:
    """Run the health check of a service with its port in this test."""
    _, program, *arguments = service["healthcheck"]["test"]
    assert program == "python"
    check = [re.sub(r"http://127\.0\.0\.1:\d+", url, each) for each in arguments]
    subprocess.run([sys.executable, *check], check=True)


@pytest.mark.parametrize("name", UNITS)
def test_a_unit_restarts_without_rights_that_it_does_not_need(name: str) -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]  # names keep their case
    unit.read(DEPLOY / name)

    service = unit["Service"]
    assert service["Restart"] == "always"
    assert service["CapabilityBoundingSet"] == ""
    for right in ("NoNewPrivileges", "PrivateDevices", "ProtectKernelTunables", "DynamicUser"):
        assert service[right] == "yes", right
    assert service["ProtectSystem"] == "strict"
    assert int(service["TimeoutStopSec"]) > 10
