"""The code in the documents runs."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest

from tests.documents.fences import ROOT, Block, blocks
from tests.support.host import ServedHost

# The tutorial has its own test, which runs its commands too.
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs" / "how-to").glob("*.md"))]
WITH_CODE = [
    document
    for document in DOCUMENTS
    if any(block.language == "python" and not block.word for block in blocks(document))
]
# Words after `python` that exclude a block from being run, and why.
NOT_RUN = {
    "fragment": "a part of a function, or with names that the reader brings along",
    "server": "it never ends",
}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a directory with a copy of an emitter in which a host was started."""
    directory = tmp_path_factory.mktemp("project")
    (directory / "logs").mkdir()
    emitter = files("wopr.kahn.emitters").joinpath("kahn_agent_emit.py").read_text()
    (directory / "kahn_agent_emit.py").write_text(emitter)
    host = ServedHost(directory / "data", variables={"WOPR_API_KEYS": ""})
    host.start()
    yield directory
    host.stop()


@pytest.mark.parametrize("document", WITH_CODE, ids=lambda path: path.name)
def test_the_code_of_a_document_runs(document: Path, project: Path) -> None:
    code = "\n".join(_numbered(block) for block in blocks(document) if _is_run(block))
    variables = {k: v for k, v in os.environ.items() if not k.startswith(("WOPR_", "OTEL_"))}

    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=project,
        env=variables,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_code_that_is_not_run_is_valid_syntax(document: Path) -> None:
    left_out = [b for b in blocks(document) if b.language == "python" and not _is_run(b)]

    for block in left_out:
        assert block.word in NOT_RUN
        where = f"{document.name}:{block.line}"
        compile(textwrap.dedent(block.text), where, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def _is_run(block: Block) -> bool:
    return block.language == "python" and not block.word


def _numbered(block: Block) -> str:
    return f"# line {block.line}\n{block.text}"
