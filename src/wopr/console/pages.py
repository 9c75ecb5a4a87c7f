"""Every page of the console. Of two paths that match, the first answers."""

from __future__ import annotations

from typing import Final

from wopr.console import (
    agent_pages,
    compare_page,
    fleet_agent_page,
    fleet_demo_page,
    fleet_pages,
    fleet_run_page,
    inbox_page,
    judge_page,
    live,
    queue_pages,
    reviews_page,
    run_actions,
    run_export,
    run_feedback,
    run_page,
    runs_page,
    settings_page,
    sign_in,
    start_page,
    usage_page,
    wait_page,
    workflow_pages,
)
from wopr.console.page import Page

PAGES: Final[tuple[Page, ...]] = (
    *sign_in.PAGES,
    *runs_page.PAGES,
    *run_export.PAGES,
    *run_page.PAGES,
    *run_actions.PAGES,
    *run_feedback.PAGES,
    *live.PAGES,
    *inbox_page.PAGES,
    *wait_page.PAGES,
    *reviews_page.PAGES,
    *judge_page.PAGES,
    *queue_pages.PAGES,
    *compare_page.PAGES,
    *workflow_pages.PAGES,
    *fleet_pages.PAGES,
    *fleet_demo_page.PAGES,
    *fleet_agent_page.PAGES,
    *fleet_run_page.PAGES,
    *start_page.PAGES,
    *agent_pages.PAGES,
    *settings_page.PAGES,
    *usage_page.PAGES,
)
