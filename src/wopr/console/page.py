"""What a page is: a path, who may see it, and what answers. To add one, write it into `pages.PAGES`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from wopr.console.visit import Visit
from wopr.http.answers import Answer, Stream
from wopr.http.operation import Offered, ReadLevel

PageHandler: TypeAlias = Callable[[Visit], Awaitable[Answer | Stream]]
# The scope of a page that anybody may see who has signed in.
SIGNED_IN: Final = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One path of the console.

    `scope` is what reading it needs, and sending its form too unless `post_scope` says otherwise;
    None leaves it open to everybody. `post` answers its form, whose token is checked before.
    `action` is what the audit calls sending it, and `read` which reads of it the audit has.
    A form with values of a workflow or long texts may be as large as any request: `has_large_form`.
    """

    name: str
    path: str
    get: PageHandler
    post: PageHandler | None = None
    scope: str | None = SIGNED_IN
    post_scope: str | None = None
    action: str | None = None
    offered: Offered | None = None
    read: ReadLevel = "all"
    has_large_form: bool = False
