"""Two versions of an app: the second has one more node type."""

from __future__ import annotations

from pathlib import Path

_NODE = """
@node("shop.{name}")
async def {name}(ctx: NodeContext, config: dict[str, str], inputs: dict[str, str]) -> dict[str, str]:
    await anyio.sleep({seconds})
    return {{"step": "{name}"}}

"""
_IMPORTS = "import anyio\n\nfrom wopr import NodeContext, node\n\n"


def write_app(folder: Path, *names: str, seconds: float = 0.05) -> Path:
    """Write an app with a node type `shop.<name>` for each name, and return its file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"app_{'_'.join(names)}.py"
    nodes = (_NODE.format(name=name, seconds=seconds) for name in names)
    path.write_text(_IMPORTS + "\n".join(nodes))
    return path
