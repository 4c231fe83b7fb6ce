"""For every test: verifiers on, a cache of their own, and property tests that repeat exactly."""

from __future__ import annotations

import os
import tempfile

from hypothesis import HealthCheck, settings

# Set before anything reads them: a developer's cache must neither help nor be filled.
_CACHE = tempfile.TemporaryDirectory(prefix="smelt-tests-", ignore_cleanup_errors=True)
os.environ["SMELT_CACHE_DIR"] = os.path.join(_CACHE.name, "cache")  # noqa: PTH118
os.environ.setdefault("SMELT_VERIFY", "1")
os.environ.setdefault("SMELT_PROBE", "off")

settings.register_profile(
    "smelt",
    deadline=None,  # machines are shared: time limits belong to pytest-timeout
    derandomize=True,  # `make test` finds the same thing twice; `make nightly` looks further
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.register_profile("nightly", settings.get_profile("smelt"), derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "smelt"))
