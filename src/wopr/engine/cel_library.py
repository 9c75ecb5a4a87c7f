"""The compiled part of the CEL library, imported without the rest of its package.

The package imports its own command line, with a terminal toolkit and some 150 modules that a host
never uses. The compiled module needs none of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import cel as cel
else:
    import sys
    from importlib.machinery import PathFinder
    from importlib.util import find_spec, module_from_spec

    _NAME = "cel.cel"
    cel = sys.modules.get(_NAME)
    if cel is None:
        _spec = PathFinder.find_spec(_NAME, find_spec("cel").submodule_search_locations)
        cel = module_from_spec(_spec)
        _spec.loader.exec_module(cel)
        # A later import of the package finds this module.
        sys.modules[_NAME] = cel
