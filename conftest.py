"""For every test: verifiers on, a cache of their own, and property tests that repeat exactly."""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
import tempfile
from importlib import import_module
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from tests.isa_sampling import put_off

# Set before anything reads them: a developer's cache must neither help nor be filled.
_CACHE = tempfile.TemporaryDirectory(prefix="smelt-tests-", ignore_cleanup_errors=True)
os.environ["SMELT_CACHE_DIR"] = os.path.join(_CACHE.name, "cache")  # noqa: PTH118
os.environ.setdefault("SMELT_VERIFY", "1")
os.environ.setdefault("SMELT_PROBE", "off")

# Byte code is kept, whatever this process was told: a hundred tests start a process, which would
# spend most of its time on compiling Smelt's sources again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Plans depend on a machine's caches; what tests say of plans is said of a machine with these.
_TARGET: Any = import_module("smelt.target")
_CACHES = _TARGET.CacheSizes(l1=48 << 10, l2=1 << 20, l3=32 << 20, line=64)
_TARGET.cache_sizes = lambda: _CACHES

if importlib.util.find_spec("torch") is None:  # an extra: its front end cannot be imported
    collect_ignore_glob = ["src/smelt/torch.py", "src/smelt/frontends/torch/*"]
collect_ignore = ["tests/codegen/triton_interpreter.py"]  # a program, which needs Triton
if importlib.util.find_spec("onnx") is None:  # an extra, which two modules need
    collect_ignore += ["src/smelt/onnx/backend.py", "src/smelt/onnx/reference.py"]

settings.register_profile(
    "smelt",
    deadline=None,  # machines are shared: time limits belong to pytest-timeout
    derandomize=True,  # `make test` finds the same thing twice; `make nightly` looks further
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.register_profile("nightly", settings.get_profile("smelt"), derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "smelt"))


@pytest.hookimpl(tryfirst=True)  # before the marks are looked at
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what is for the night."""
    for item in put_off(items, _TARGET.Target.host().isa):
        item.add_marker(pytest.mark.nightly)


@pytest.fixture(scope="module", autouse=True)
def _traces() -> None:
    """PyTorch writes a trace of all that it compiles, graphs in full, where its logger for them has
    a handler; pytest gives some to every logger that does not propagate."""
    if "torch" in sys.modules:
        traces = logging.getLogger("torch.__trace")
        traces.propagate = True
        traces.handlers.clear()
