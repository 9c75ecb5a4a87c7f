"""The maximum size of an agent manifest."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.agents.test_agent_registry import ADVERTISED, WRITER, Clock, manifest
from wopr.agents.registry import MAX_TENANT_BYTES, AgentRegistry
from wopr.protocol.errors import Refused
from wopr.store.open import open_store

pytestmark = pytest.mark.anyio

LARGE = manifest(systemPrompt="x" * 300_000)


async def test_a_manifest_above_the_size_limit_is_refused_with_field_size_and_limit(
    tmp_path: Path,
) -> None:
    store = await open_store(f"sqlite:///{tmp_path / 'wopr.db'}")
    agents = AgentRegistry(store, Clock(), ADVERTISED)

    with pytest.raises(Refused) as refused:
        await agents.register("acme", LARGE)

    size = len(msgspec.json.encode(LARGE))
    message = f"the manifest has {size} bytes, and at most 262144 are allowed"
    assert refused.value.details["errors"] == [{"path": "systemPrompt", "message": message}]
    await store.close()


async def test_a_larger_manifest_that_is_already_stored_stays_usable(tmp_path: Path) -> None:
    store = await open_store(f"sqlite:///{tmp_path / 'wopr.db'}")
    await AgentRegistry(store, Clock(), ADVERTISED, max_bytes=400_000).register("acme", LARGE)

    found = await AgentRegistry(store, Clock(), ADVERTISED).agent("acme", WRITER)

    assert found.manifest.system_prompt == LARGE["systemPrompt"]
    await store.close()


async def test_the_total_size_of_a_tenant_s_manifests_has_a_limit(
    tmp_path: Path,
) -> None:
    async def has_room(tenant: str) -> None:
        """Accept every quota check."""

    store = await open_store(f"sqlite:///{tmp_path / 'wopr.db'}")
    agents = AgentRegistry(
        store, Clock(), ADVERTISED, max_bytes=MAX_TENANT_BYTES, check_quota=has_room
    )
    half = "x" * (MAX_TENANT_BYTES // 2)
    await agents.register("acme", manifest(systemPrompt=half))

    with pytest.raises(Refused, match=f"all together may have {MAX_TENANT_BYTES}"):
        await agents.register("acme", manifest(version="2", systemPrompt=half))

    await agents.register("acme", manifest(version="2"))
    await agents.register("globex", manifest(systemPrompt=half))
    await store.close()
