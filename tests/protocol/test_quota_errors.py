from __future__ import annotations

from wopr.http.response import error_response
from wopr.protocol.errors import QuotaExceeded


def test_an_exhausted_quota_is_answered_with_name_limit_use_and_retry_time() -> None:
    error = QuotaExceeded(
        "activeRuns", limit=10, current=10, remedy="Wait for a run to end.", retry_after=7
    )

    answer = error_response(error)

    assert (answer.status, error.code) == (429, "quota_exceeded")
    assert answer.headers["retry-after"] == "7"
    assert error.details == {
        "retryAfterMs": 7000,
        "quota": "activeRuns",
        "limit": 10,
        "current": 10,
        "scope": "tenant",
    }
    assert error.message == (
        'Quota "activeRuns" of this tenant is used up: 10 of 10. Wait for a run to end. '
        "Or ask the operator for a higher quota."
    )
