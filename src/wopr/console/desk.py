"""What all pages of one served host share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from wopr.console.run_log import RunLogs
from wopr.console.session import Sessions
from wopr.http.endpoint import Shared
from wopr.http.operation import Offered
from wopr.runtime.host import Host

if TYPE_CHECKING:
    from wopr.console.live import LiveParts


class Desk:
    """The console's own state: nothing in it outlives the process, and nothing needs to."""

    def __init__(
        self,
        shared: Shared,
        scopes: Mapping[str, str | None],
        offers: Mapping[str, Offered],
        parts: LiveParts,
    ) -> None:
        self.shared = shared
        # The scope that each page needs, by its path.
        self.scopes = scopes
        # What refuses a page that the operator has switched off, by its path.
        self.offers = offers
        self.logs = RunLogs()
        self.parts = parts
        self._sessions: Sessions | None = None

    def sessions(self, host: Host) -> Sessions:
        """The sessions of the host, which is open by now."""
        if self._sessions is None:
            self._sessions = Sessions(host.session_key, host.keyring, host.store, host.sources.now)
        return self._sessions
