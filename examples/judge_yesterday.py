"""An LLM as judge over yesterday's runs: every finished run gets stars, and a reason.

    wopr dev examples/judge_yesterday.py
    python examples/judge_yesterday.py hello
    wopr feedback summary --by workflow

The judge reads what others wrote, so all of it is data to its model and never an instruction.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import anyio
import msgspec

from wopr import Agent, Host, Workflow, connect
from wopr.protocol.reviews import Judge

MODEL = "openai:gpt-4o-mini"


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """How good a run was."""

    rating: Annotated[int, msgspec.Meta(ge=1, le=5)]
    note: str


@dataclass
class Judged:
    """The run that is judged, as the host hands it to a judge."""

    run: dict[str, Any]


judge = Agent(
    "acme.quality.judge",
    model=MODEL,
    output=Verdict,
    model_class="classification",
    instructions="Give the run one to five stars for what its user got, and say why in one line.",
)

flow = Workflow("judge-run", inputs=Judged, outputs=Verdict)
look = flow.agent("look", judge, prompt="How good is this run?", run=flow.inputs.run["outputs"])
end = flow.end(rating=look["result"]["rating"], note=look["result"]["note"])
look >> end


async def judge_yesterday(host: Host, workflow_id: str, until: datetime) -> Judge | None:
    """Judge the runs of one workflow that ended in the day before; None when there were none."""
    since = until - timedelta(days=1)
    runs = await host.runs(
        workflowId=workflow_id,
        status="completed",
        since=since.isoformat(),
        until=until.isoformat(),
        limit="100",
    )
    return await host.judge(flow, judge, [run.run_id for run in runs]) if runs else None


async def main(workflow_id: str) -> None:
    """Judge, and say what came of it."""
    async with connect() as host:
        judged = await judge_yesterday(host, workflow_id, datetime.now(UTC))
        print("nothing to judge" if judged is None else judged.counts)
        for each in (judged and judged.items) or []:
            if each.reason:
                print(f"run {each.run_id}: {each.reason}")


if __name__ == "__main__":
    [judged_workflow] = sys.argv[1:] or ["hello"]
    anyio.run(main, judged_workflow)
