"""For every test: verifiers on, a cache of their own, and property tests that repeat exactly."""

from __future__ import annotations

import gc
import importlib.util
import logging
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from tests.durations import read_table
from tests.sampling import commit_seed, draw_examples, name_of_test, put_off, share_of_examples

# Set before anything reads them: a developer's cache must neither help nor be filled.
_CACHE = tempfile.TemporaryDirectory(prefix="smelt-tests-", ignore_cleanup_errors=True)
os.environ["SMELT_CACHE_DIR"] = os.path.join(_CACHE.name, "cache")  # noqa: PTH118
os.environ.setdefault("SMELT_VERIFY", "1")
os.environ.setdefault("SMELT_PROBE", "off")
# Whether a test imports smelt.numpy must not decide who computes the arrays of another one.
os.environ.setdefault("SMELT_TIERS", "fused")
# Tests have small arrays, which `smelt.numpy` would leave to NumPy.
os.environ.setdefault("SMELT_SMALL_ELEMENTS", "0")

# Byte code is kept, whatever this process was told: a hundred tests start a process, which would
# spend most of its time on compiling Smelt's sources again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Plans depend on a machine's caches; what tests say of plans is said of a machine with these.
_TARGET: Any = import_module("smelt.machine.target")
_CACHES = _TARGET.CacheSizes(l1=48 << 10, l2=1 << 20, l3=32 << 20, line=64)
_TARGET.cache_sizes = lambda: _CACHES


def _same_figures(target: Any, class_figures: Any = _TARGET._with_class_figures) -> Any:
    """Give this machine the figures of its instruction set; those of a class are named in tests."""
    is_host = target.name not in _TARGET.INSTRUCTION_SETS
    figures = class_figures(replace(target, cpu="") if is_host else target)
    return replace(figures, cpu=target.cpu)


_TARGET._with_class_figures = _same_figures

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


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add what `make test` draws its cases with."""
    parser.addoption(
        "--sample-seed",
        default=os.environ.get("SAMPLE_SEED"),
        help="draw the cases of long sweeps as at this commit; `all` runs all",
    )


@pytest.hookimpl(tryfirst=True)  # before workers copy the options
def pytest_configure(config: pytest.Config) -> None:
    """Fix the seed for all workers."""
    if config.option.sample_seed is None:
        config.option.sample_seed = commit_seed()


@pytest.hookimpl(tryfirst=True)  # before the marks are looked at
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what is for the night; cases that are named on the command line are not."""
    seed = config.option.sample_seed
    if seed == "all":
        return
    seconds = {name: duration.seconds for name, duration in read_table().items()}
    named = {arg for arg in config.invocation_params.args if arg.endswith("]")}
    late = put_off(items, _TARGET.Target.host().isa, seconds, seed)
    if os.environ.get("HYPOTHESIS_PROFILE") == "nightly":  # whole, whichever were drawn by day
        tests = {name_of_test(item.nodeid) for item in late}
        late = [item for item in items if name_of_test(item.nodeid) in tests]
        late += [item for item in items if share_of_examples(item, seconds) < 1]
    else:
        draw_examples(items, seconds)
    for item in late:
        if item.nodeid not in named:
            item.add_marker(pytest.mark.nightly)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say how a failure of a drawn case is repeated."""
    if any(terminalreporter.stats.get(kind) for kind in ("failed", "error")):
        terminalreporter.write_line(
            "Long sweeps were sampled: pytest 'FILE::TEST[CASE]' runs a case that failed again, "
            f"--sample-seed={config.option.sample_seed or repr('')} the same cases of all tests."
        )


@pytest.fixture(scope="module", autouse=True)
def _older_objects_are_hidden(request: pytest.FixtureRequest) -> Iterator[None]:
    """Hide what was collected from the garbage collections that a module's tests ask for.

    A collection would walk the millions of objects of 25,000 tests. Other modules see none hidden:
    a compilation hides more where it finds none. So do those with `SEES_ALL_OBJECTS`.
    """
    module = getattr(request.node, "obj", None)
    asks = getattr(module, "gc", None) is gc and not getattr(module, "SEES_ALL_OBJECTS", False)
    if asks:
        gc.collect()  # garbage that stayed would keep arrays pending
        gc.freeze()
    yield
    if asks:
        gc.unfreeze()
        import_module("smelt.runtime.compile_scope").forget_frozen_objects()


@pytest.fixture(scope="module", autouse=True)
def _traces() -> None:
    """PyTorch writes a trace of all that it compiles, graphs in full, where its logger for them has
    a handler; pytest gives some to every logger that does not propagate."""
    if "torch" in sys.modules:
        traces = logging.getLogger("torch.__trace")
        traces.propagate = True
        traces.handlers.clear()
