from __future__ import annotations

import re
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from openapi_spec_validator import OpenAPIV31SpecValidator
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from starlette.routing import Route

from tests.support.client import Wire
from tests.support.host import ACME, ServedHost
from wopr.http.app import OPERATIONS, App
from wopr.protocol.documents import JsonObject

NAMES = [*(operation.name for operation in OPERATIONS), "getOpenapi"]
# Of each kind, for each operation.
EXAMPLES = 13
# Requests without a part that could be invalid.
CANNOT_BE_WRONG = {"getDiscovery", "getAsyncapi", "healthz", "readyz", "metrics", "getOpenapi"}
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
BOUNDED = settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def described(host: ServedHost) -> JsonObject:
    with Wire(host.url, None) as wire:
        return wire.document("/v1/openapi.json")


@pytest.fixture(scope="module")
def schema(described: JsonObject, host: ServedHost) -> Any:
    loaded = schemathesis.openapi.from_dict(described)
    loaded.config.update(base_url=host.url)
    return loaded


def test_schemas_keep_their_published_names(described: JsonObject, host: ServedHost) -> None:
    with Wire(host.url, None) as wire:
        mock_agent = wire.document("/v1/schemas/core-conformance-mock-agent-config")

    # Generated clients have classes with these names.
    assert {"Verdict", "Fault", "RunAccepted"} <= described["components"]["schemas"].keys()
    assert "MockError" in mock_agent["$defs"]


def test_the_document_is_valid_openapi_3_1(described: JsonObject) -> None:
    faults = [error.message for error in OpenAPIV31SpecValidator(described).iter_errors()]

    assert described["openapi"].startswith("3.1")
    assert faults == []


def test_the_document_describes_exactly_the_routes_that_are_served(described: JsonObject) -> None:
    app = App(lambda: pytest.fail("nothing is served here"))

    routes = {route.path for route in app._router.routes if isinstance(route, Route)}

    written = {re.sub(r"\{(\w+)\}", "{}", path) for path in described["paths"]}
    served = {re.sub(r"\{(\w+)(:path)?\}", "{}", path) for path in routes}
    operations = [o for path in described["paths"].values() for o in path.values()]
    assert written == served
    assert sorted(o["operationId"] for o in operations) == sorted(NAMES)


def test_every_operation_names_its_scope_and_whether_it_is_an_extension(
    described: JsonObject,
) -> None:
    by_id = {o["operationId"]: o for path in described["paths"].values() for o in path.values()}

    for operation in OPERATIONS:
        written = by_id[operation.name]
        assert written.get("x-openwop-scope") == operation.scope
        assert written.get("x-wopr-extension", False) == operation.is_extension
        assert ("security" in written) == (operation.scope is not None)
        assert written["summary"]


def test_every_error_is_described_as_the_envelope(described: JsonObject) -> None:
    for path in described["paths"].values():
        for operation in path.values():
            for status, response in operation["responses"].items():
                if int(status) >= 400:
                    reference = response["content"]["application/json"]["schema"]["$ref"]
                    assert reference.endswith("/ErrorEnvelope")


def test_every_exported_schema_is_served_with_its_id(anonymous: Wire) -> None:
    listing = anonymous.get("/v1/schemas/nothing").json()["message"]
    names = listing.partition("are ")[2].split(", ")

    for name in names:
        for path in (f"/v1/schemas/{name}", f"/v1/schemas/{name}.json"):
            response = anonymous.get(path)
            assert response.status_code == 200
            assert response.headers["content-type"] == "application/schema+json"
            assert "$schema" in response.json()


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        *((name, GenerationMode.POSITIVE) for name in NAMES),
        *((name, GenerationMode.NEGATIVE) for name in NAMES if name not in CANNOT_BE_WRONG),
    ],
)
def test_an_operation_responds_as_described_to_any_request(
    acme: Wire, schema: Any, name: str, mode: GenerationMode
) -> None:
    run_id = acme.create("conformance-noop")
    operation = schema.find_operation_by_id(name)
    real = {"runId": run_id, "workflowId": "conformance-noop", "name": "run-snapshot"}

    @BOUNDED
    @given(case=operation.as_strategy(generation_mode=mode))
    def holds(case: Any) -> None:
        for parameter in real.keys() & (case.path_parameters or {}).keys():
            # In half of the requests the resource exists: a missing one tests little.
            if len(str(case.path_parameters[parameter])) % 2:
                case.path_parameters[parameter] = real[parameter]
        if name == "createRun" and isinstance(case.body, dict) and "workflowId" in case.body:
            case.body["workflowId"] = "conformance-noop"
        case.call_and_validate(
            headers={"Authorization": f"Bearer {ACME}"}, checks=CHECKS, timeout=60
        )

    holds()
