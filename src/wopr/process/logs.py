"""Logging: readable lines for a terminal, or JSON."""

from __future__ import annotations

import logging
import sys
from typing import Final

import structlog

from wopr.security.redact import Redactor

# Libraries that log every request, and its content at the debug level.
_VERBOSE_LIBRARIES = (
    *("httpx", "httpcore", "httpx2", "httpcore2", "openai", "anthropic", "google_genai"),
    *("mcp", "sse_starlette"),
)
_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
# The members that every line has, whether WOPR or a library wrote it.
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
        """Format a record without text that looks like a secret."""
        line = super().format(record)
        if not self.redactor.may_hold_secret(line.encode("utf-8", "replace")):
            return line
        return self.redactor.text(line)


def redact_logs(redactor: Redactor) -> None:
    """Use this redactor for all log lines from now on."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler.formatter, RedactingFormatter):
            handler.formatter.redactor = redactor


def configure_logs(log_format: str, log_level: str) -> None:
    """Log to standard error, from this level on."""
    level = _LEVELS[log_level]
    # At the level info JSON logs have a line per request. A terminal shows only warnings and
    # errors.
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
    for library in _VERBOSE_LIBRARIES:
        logging.getLogger(library).setLevel(logging.WARNING)
