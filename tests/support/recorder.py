"""Validate every response of a host by the published schemas, where they are available."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

import httpx
import jsonschema_rs

from wopr.protocol.documents import Json, JsonObject

OFFICIAL = Path(__file__).parents[2].parent / "shared" / "openwop"
BASE = "https://openwop.dev/spec/v1/"
SNAPSHOT_PATH = re.compile(r"^/v1/runs/[^/:]+$")
EVENTS_PATH = re.compile(r"^/v1/runs/[^/]+/events(/poll)?$")
PAYLOAD_SCHEMAS = "run-event-payloads.schema.json"
NOTICE = "run.annotated"


@cache
def _registry() -> jsonschema_rs.Registry:
    schemas = [json.loads(path.read_text()) for path in OFFICIAL.glob("schemas/**/*.json")]
    return jsonschema_rs.Registry([(s["$id"], s) for s in schemas if "$id" in s])


@cache
def _validator(reference: str) -> jsonschema_rs.Draft202012Validator:
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$ref": reference}
    return jsonschema_rs.Draft202012Validator(
        schema, registry=_registry(), base_uri=BASE, offline=True
    )


@cache
def _payload_schemas() -> dict[str, str]:
    """Return the place where the payload of each event type is described."""
    published = json.loads((OFFICIAL / "schemas" / PAYLOAD_SCHEMAS).read_text())
    index: JsonObject = published["$defs"]["_typeIndex"]["properties"]
    return {name: PAYLOAD_SCHEMAS + entry["$ref"] for name, entry in index.items()}


def _published(event: JsonObject) -> Json:
    """Return the payload in the form of its schema, which lacks one reducer of the workflow."""
    payload: Json = event["payload"]
    is_message = event["type"] == "channel.written" and payload["reducer"] == "message"
    return payload | {"reducer": "append"} if is_message else payload


class Recorder:
    """Validate every document that a client receives, and count them."""

    def __init__(self) -> None:
        self.is_official = (OFFICIAL / "schemas").is_dir()
        self.seen = 0
        # A custom interrupt kind that the operator enables in events although their schema excludes
        # it.
        self.literal_kind = ""

    def check(self, reference: str, document: Json) -> None:
        """Fail when a published schema refuses the document."""
        self.seen += 1
        if self.is_official:
            faults = [error.message for error in _validator(reference).iter_errors(document)]
            assert not faults, f"{reference}: {faults}\n{json.dumps(document, indent=1)}"

    def error(self, document: JsonObject) -> None:
        """Check an error envelope: closed and without nulls."""
        assert document.keys() <= {"error", "message", "details"}
        assert all(
            isinstance(document[name], str) and document[name] for name in ("error", "message")
        )
        assert isinstance(document.get("details", {}), dict)
        self.check("error-envelope.schema.json", document)

    def event(self, event: JsonObject) -> None:
        """Check an event of the log with the payload of its type."""
        self.check("run-event.schema.json", event)
        if self.is_official and event["type"] in _payload_schemas():
            payload = _published(event)
            if self.literal_kind and payload.get("kind") == self.literal_kind:
                payload |= {"kind": "custom"}
            self.check(_payload_schemas()[event["type"]], payload)

    def frame(self, event_type: str, data: Json) -> None:
        """Check the data of an SSE frame."""
        if event_type == "batch":
            for event in data:
                self.event(event)
        elif event_type == "state.snapshot":
            self.check("run-snapshot.schema.json", data["payload"])
        elif event_type == "ai.message.chunk":
            self.check(f"{PAYLOAD_SCHEMAS}#/$defs/outputChunk", data)
        elif event_type == NOTICE:
            self.check("annotation.schema.json", data)
        else:
            assert data["type"] == event_type
            self.event(data)

    def response(self, response: httpx.Response) -> None:
        """Check a response by the path of its request."""
        assert response.status_code < 500 or response.status_code == 503, response.text
        media = response.headers.get("content-type", "")
        if "json" not in media or "ndjson" in media:
            return
        document = response.json()
        path = response.request.url.path
        if response.is_error:
            self.error(document)
        elif path == "/.well-known/openwop":
            self.check("capabilities.schema.json", document)
        elif EVENTS_PATH.match(path):
            for event in document["events"]:
                self.event(event)
        elif SNAPSHOT_PATH.match(path) and response.request.method == "GET":
            self.check("run-snapshot.schema.json", document)
