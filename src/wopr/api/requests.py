"""Requests to a host, whoever makes them: what fails is told in the caller's own errors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

import httpx
import msgspec

from wopr.protocol.documents import Json, JsonObject, Unset, encode
from wopr.protocol.references import references_in, resolved

_JSON: Final = {"Content-Type": "application/json"}


def segment(name: str) -> str:
    """A name as one segment of a path."""
    return quote(name, safe="")


class Requests(ABC):
    """Requests to one host; a subclass says how refusals and failures are told."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    @abstractmethod
    def _refused(self, response: httpx.Response) -> Exception:
        """What a response that is no success says."""

    @abstractmethod
    def _unreachable(self, fault: Exception) -> Exception:
        """A host that gave no answer at all."""

    async def _send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        try:
            response = await self._http.request(
                method, path, params=query, content=content, headers=headers
            )
        except (httpx.HTTPError, httpx.InvalidURL) as fault:
            raise self._unreachable(fault) from fault
        if not response.is_success:
            raise self._refused(response)
        return response

    async def _send_document(
        self,
        path: str,
        body: object,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        sent = {**_JSON, **(headers or {})}
        return await self._send("POST", path, query=query, content=encode(body), headers=sent)

    async def _whole_outputs(self, run_id: str, outputs: JsonObject | Unset) -> JsonObject | Unset:
        """The outputs of a run, with the values that they refer to."""
        if isinstance(outputs, Unset):
            return outputs
        values: dict[str, Json] = {}
        for reference in references_in(outputs):
            name: str = reference["artifactId"]
            if name not in values:
                path = f"/v1/runs/{segment(run_id)}/artifacts/{segment(name)}"
                values[name] = msgspec.json.decode((await self._send("GET", path)).content)
        whole: JsonObject = resolved(outputs, values)
        return whole
