"""Logs: readable lines for a terminal, or JSON with run ids for a machine."""

from __future__ import annotations

import logging
import sys
from typing import Final

import structlog

from wopr.security.redact import Redactor

# Libraries that tell of every request, and at the level of debugging of what is in it.
_TALKATIVE = (
    *("httpx", "httpcore", "httpx2", "httpcore2", "openai", "anthropic", "google_genai"),
    *("mcp", "sse_starlette"),
)
_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}


# The members that every line has beside its event, whether WOPR or a library wrote it.
_COMMON: Final[tuple[structlog.typing.Processor, ...]] = (
    structlog.stdlib.add_logger_name,
    structlog.processors.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.format_exc_info,
)


class RedactingFormatter(structlog.stdlib.ProcessorFormatter):
    """Writes the lines of WOPR and of its libraries in one format, without credentials."""

    def __init__(self, renderer: structlog.typing.Processor) -> None:
        super().__init__(
            processors=[self.remove_processors_meta, renderer], foreign_pre_chain=_COMMON
        )
        self.redactor = Redactor()

    def format(self, record: logging.LogRecord) -> str:
        """Write a record without what looks like a secret."""
        line = super().format(record)
        if not self.redactor.may_hold_secret(line.encode("utf-8", "replace")):
            return line
        return self.redactor.text(line)


def redact_logs(redactor: Redactor) -> None:
    """Keep what this redactor knows out of the log as well, from now on."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler.formatter, RedactingFormatter):
            handler.formatter.redactor = redactor


def configure_logs(log_format: str, log_level: str) -> None:
    """Send everything to standard error, ours and the libraries', from this level on."""
    level = _LEVELS[log_level]
    # Requests are worth a line each for a machine; a terminal shows what needs attention.
    shown = level if log_format == "json" or level != 20 else 30
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if log_format == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    structlog.configure(
        processors=[*_COMMON, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(RedactingFormatter(renderer))
    logging.basicConfig(handlers=[handler], level=shown, force=True)
    logging.getLogger("uvicorn").setLevel(max(shown, logging.WARNING))
    for library in _TALKATIVE:
        logging.getLogger(library).setLevel(logging.WARNING)
