"""What a second registration of the same version means, whichever adapter asks."""

from __future__ import annotations

from wopr.protocol.errors import Conflict
from wopr.store.port import AgentRow, WorkflowRow


def require_same_workflow(row: WorkflowRow, stored_digest: bytes) -> None:
    """Raise `Conflict` when other content is stored under this id and version."""
    if stored_digest != row.digest:
        raise Conflict(
            f"workflow {row.workflow_id} has other content under version {row.version}: "
            "register the change under a new version",
            code="workflow_exists",
            workflowId=row.workflow_id,
            version=row.version,
        )


def require_same_agent(row: AgentRow, stored_digest: bytes) -> None:
    """Raise `Conflict` when other content is stored under this id and version."""
    if stored_digest != row.digest:
        raise Conflict(
            f"agent {row.agent_id} has other content under version {row.version}: "
            "register the change under a new version",
            code="agent_exists",
            agentId=row.agent_id,
            version=row.version,
        )
