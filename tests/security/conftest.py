from __future__ import annotations

from hypothesis import settings

# The first example of a process loads the detectors, which takes longer than the others.
settings.register_profile("security", deadline=None)
settings.load_profile("security")
