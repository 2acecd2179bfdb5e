from __future__ import annotations

from hypothesis import settings

# How long an example takes is not what these tests are about.
settings.register_profile("accounting", deadline=None)
settings.load_profile("accounting")
