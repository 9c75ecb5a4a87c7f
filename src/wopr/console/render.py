"""Templates: everything that is not markup of our own is escaped, and a name that is missing fails."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from wopr.console import words
from wopr.console.static_files import static_path


def environment() -> Environment:
    """Make the one environment that renders all pages."""
    made = Environment(
        loader=PackageLoader("wopr.console"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters.update(words.FILTERS)
    made.filters["static"] = static_path
    return made


_ENVIRONMENT: Final = environment()


def macro(template: str, name: str, values: Mapping[str, object]) -> Callable[..., str]:
    """A macro of a template. Calling it many times costs less than rendering a template each time."""
    call = getattr(_ENVIRONMENT.get_template(template).make_module(dict(values)), name)
    return lambda *arguments: str(call(*arguments)).encode("utf-8", "replace").decode()


def render(template: str, **values: object) -> bytes:
    """Render a template."""
    return _ENVIRONMENT.get_template(template).render(values).encode("utf-8", "replace")
