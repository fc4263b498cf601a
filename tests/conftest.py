"""Properties have no deadline: a busy machine is no reason to fail."""

from hypothesis import settings

settings.register_profile("patient", deadline=None)
settings.load_profile("patient")
