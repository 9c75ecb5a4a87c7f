"""A YAML loader that returns plain JSON values: unique text keys, and dates as text."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Final

import yaml

_TEXT_TAG: Final = "tag:yaml.org,2002:str"
_MERGE_TAG: Final = "tag:yaml.org,2002:merge"
_TIME_TAG: Final = "tag:yaml.org,2002:timestamp"


class StrictLoader(yaml.SafeLoader):
    """Safe YAML whose mappings have unique text keys and whose dates are text."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Build a mapping after checking its keys, before merge keys are applied."""
        seen: set[str] = set()
        for key, _ in node.value:
            if key.tag not in (_TEXT_TAG, _MERGE_TAG):
                raise _error_at(key, f"a key must be text; quote {str(key.value)!r}")
            if key.value in seen:
                raise _error_at(key, f"the key {key.value!r} is duplicated")
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


StrictLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != _TIME_TAG]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _error_at(node: yaml.Node, reason: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=reason, problem_mark=node.start_mark)
