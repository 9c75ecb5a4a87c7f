"""Names on the way from run logs to KAHN (section 14.2): kept where they fit, else made to fit."""

from __future__ import annotations

import re
from functools import lru_cache
from hashlib import sha256
from typing import Final

_RUN_ID: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_-]{0,63}")
_AGENT_ID: Final = re.compile(r"[a-z0-9][a-z0-9:-]{0,63}")
_DOTTED: Final = re.compile(r"[a-z0-9.-]+")
_CHECKPOINT_LENGTH: Final = 128
# What is left of a name that gets a hash: with a dash and eight digits it is 64 characters.
_KEPT: Final = 55
_NAMES: Final = 1024


@lru_cache(maxsize=_NAMES)
def to_run_id(run_id: str) -> str:
    """Name a run; one whose id does not fit gets a name with a hash of it."""
    if _RUN_ID.fullmatch(run_id):
        return run_id
    return _hashed(re.sub(r"[^a-zA-Z0-9_-]+", "-", run_id).lstrip("-_") or "run", run_id)


@lru_cache(maxsize=_NAMES)
def to_agent_id(agent_id: str) -> str:
    """Name an agent, so that two agents never get one name.

    Colons stand for the dots of a reverse domain name; hence an id that has colons of its own is
    kept only under `host:`, which no dotted id is turned into.
    """
    is_own = ":" not in agent_id or agent_id.startswith("host:")
    if is_own and _AGENT_ID.fullmatch(agent_id):
        return agent_id
    spaced = agent_id.replace(".", ":")
    is_dotted = _DOTTED.fullmatch(agent_id) and not agent_id.startswith("host.")
    if is_dotted and _AGENT_ID.fullmatch(spaced):
        return spaced
    cleaned = re.sub(r"[^a-z0-9:-]", "-", agent_id.lower()).lstrip(":-")
    return _hashed(cleaned or "agent", agent_id)


def to_checkpoint_id(checkpoint: str) -> str:
    """Make a checkpoint's name fit; it must begin with a letter or a digit already."""
    return re.sub(r"[^a-z0-9:.-]+", "-", checkpoint.lower())[:_CHECKPOINT_LENGTH]


def _hashed(name: str, original: str) -> str:
    digest = sha256(original.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{name[:_KEPT]}-{digest[:8]}"
