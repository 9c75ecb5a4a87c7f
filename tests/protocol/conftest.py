from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import jsonschema_rs
import msgspec
import pytest

from wopr.protocol.documents import Json, JsonObject

OFFICIAL = Path(__file__).parents[2].parent / "shared" / "openwop"
BASE = "https://openwop.dev/spec/v1/"

PATTERN_SAMPLES = (
    "replace",
    "USD",
    "prompt:greet@1.0.0",
    "sha256:" + "a" * 64,
    "refusal",
    "approval",
    "spec-rfc-0041",
    "1.0",
    "/v1/discovery",
    "2027-01-01",
    "noop",
)

# Rules that a struct checks beyond its schema; `None` leaves the field out.
OVERRIDES: dict[tuple[str, bool], JsonObject] = {
    ("AgentRef", True): {"channel": None},
    ("AgentToolReturned", True): {"error": None},
    ("ConversationCloseData", False): {"reason": "done"},
    ("ConversationStartData", False): {"title": "Hello"},
    ("ConversationTurn", False): {"role": "user"},
    ("CoreWorkflowChainEvent", False): {"phase": "dispatch.began"},
    ("CoreWorkflowChainEvent", True): {"phase": "output.harvested"},
    ("InterruptPayload", False): {
        "kind": "external-event",
        "data": {"eventType": "paid", "correlation": {}},
    },
    ("InterruptPayload", True): {
        "kind": "external-event",
        "data": {"eventType": "paid", "correlation": {"orderId": "1"}},
    },
    ("ReplayDivergedAtRefusal", False): {"replayEnvelopeKind": "valid"},
    ("ReplayDivergedAtRefusal", True): {"replayEnvelopeKind": "valid"},
}


class Sample:
    """Build documents from the schema of a struct: the smallest one, or one with every field."""

    def __init__(self, struct: Json, *, full: bool, intruder_in: str = "") -> None:
        root = msgspec.json.schema(struct)
        self.shapes: dict[str, JsonObject] = root.get("$defs", {})
        self.full = full
        self.intruder_in = intruder_in
        self.document = self._build(root)

    def _build(self, schema: JsonObject) -> Json:
        if "$ref" in schema:
            return self._build(self.shapes[schema["$ref"].rsplit("/", 1)[1]])
        if "enum" in schema:
            return schema["enum"][0]
        if "anyOf" in schema:
            branches = schema["anyOf"]
            return self._build(next(filter(self._leads_to_intruder, branches), branches[0]))
        builders: dict[str | None, Callable[[JsonObject], Json]] = {
            "string": self._string,
            "integer": lambda found: found.get("minimum", 0) + 1,
            "number": lambda found: found.get("minimum", 0.5),
            "boolean": lambda _: True,
            "array": self._array,
            "object": self._object,
            None: lambda _: {"any": ["json", 1, None]},
        }
        return builders[schema.get("type")](schema)

    def _leads_to_intruder(self, schema: JsonObject) -> bool:
        names = re.findall(r'#/\$defs/(\w+)"', json.dumps(schema))
        return any(
            name == self.intruder_in or self._leads_to_intruder(self.shapes[name]) for name in names
        )

    def _string(self, schema: JsonObject) -> str:
        if "pattern" in schema:
            return next(text for text in PATTERN_SAMPLES if re.search(schema["pattern"], text))
        if schema.get("format") == "date-time":
            return "2026-01-01T00:00:00.000Z"
        return "xyz"

    def _array(self, schema: JsonObject) -> list[Json]:
        wanted = self.full or schema.get("minItems", 0) > 0
        return [self._build(schema["items"])] if wanted and "items" in schema else []

    def _object(self, schema: JsonObject) -> JsonObject:
        title = schema.get("title", "")
        wanted = schema.get("properties", {}) if self.full else schema.get("required", [])
        built = {name: self._build(schema["properties"][name]) for name in wanted}
        rest = schema.get("additionalProperties")
        if self.full and isinstance(rest, dict):
            built["anything"] = self._build(rest)
        built.update(OVERRIDES.get((title, self.full), {}))
        if title and title == self.intruder_in:
            built["intruder"] = 1
        return {name: value for name, value in built.items() if value is not None}


class Official:
    """The published schemas, read from disk and never from the network."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        schemas = [json.loads(path.read_text()) for path in folder.glob("schemas/**/*.json")]
        self.registry = jsonschema_rs.Registry(
            [(schema["$id"], schema) for schema in schemas if "$id" in schema]
        )

    def fault(self, reference: str, document: Json) -> str | None:
        """Return the error of the published schema for a document."""
        schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$ref": reference}
        validator = jsonschema_rs.validator_for(
            schema, registry=self.registry, base_uri=BASE, offline=True
        )
        return next((error.message for error in validator.iter_errors(document)), None)

    def find(self, reference: str, base: str = BASE) -> tuple[JsonObject, str]:
        """Return a published schema, and the base address of its references."""
        found = self.registry.resolver(base).lookup(reference)
        assert isinstance(found.contents, dict)
        return found.contents, found.resolver.base_uri

    def workflows(self) -> Iterator[JsonObject]:
        """Return every published conformance workflow."""
        for path in sorted(self.folder.glob("fixtures/*.json")):
            yield json.loads(path.read_text())


@pytest.fixture(scope="session")
def official() -> Official:
    if not (OFFICIAL / "schemas").is_dir():
        pytest.skip("the published OpenWOP schemas are not beside this checkout")
    return Official(OFFICIAL)


@pytest.fixture
def sample() -> type[Sample]:
    return Sample
