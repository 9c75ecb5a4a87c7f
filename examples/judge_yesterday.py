"""A model as the judge of yesterday's runs: every completed run gets a rating and a reason.

    wopr dev examples/judge_yesterday.py
    python examples/judge_yesterday.py hello
    wopr feedback summary --by workflow

The content of the runs is not trusted: the model gets it as data, never as an instruction.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import anyio
import msgspec

from wopr import Agent, Host, Workflow, connect
from wopr.protocol.resources.reviews import Judge

MODEL = "openai:gpt-4o-mini"


class RunRating(msgspec.Struct, frozen=True, kw_only=True):
    """The rating of a run, and the reason."""

    rating: Annotated[int, msgspec.Meta(ge=1, le=5)]
    note: str


@dataclass
class JudgeInputs:
    """The run to judge, as the host passes it to a judge."""

    run: dict[str, Any]


judge = Agent(
    "acme.quality.judge",
    model=MODEL,
    output=RunRating,
    model_class="classification",
    instructions="Rate the result for the user with one to five stars. "
    "Give the reason in one line.",
)

flow = Workflow("judge-run", inputs=JudgeInputs, outputs=RunRating)
rate = flow.agent("rate", judge, prompt="How good is this run?", run=flow.inputs.run["outputs"])
end = flow.end(rating=rate["result"]["rating"], note=rate["result"]["note"])
rate >> end


async def judge_yesterday(host: Host, workflow_id: str, until: datetime) -> Judge | None:
    """Judge the completed runs of one workflow of the last day; return None if there are none."""
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
    """Judge the runs and print the result."""
    async with connect() as host:
        judged = await judge_yesterday(host, workflow_id, datetime.now(UTC))
        print("no runs to judge" if judged is None else judged.counts)
        for each in (judged and judged.items) or []:
            if each.reason:
                print(f"run {each.run_id}: {each.reason}")


if __name__ == "__main__":
    [judged_workflow] = sys.argv[1:] or ["hello"]
    anyio.run(main, judged_workflow)
