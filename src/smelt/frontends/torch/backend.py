"""The entry point that `torch.compile(model, backend="smelt")` finds.

Dynamo traces a function, AOTAutograd makes its operators pure, splits forward from backward and
hands both to `compile_traced`.  What fails inside runs eagerly, with one warning.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from functorch.compile import min_cut_rematerialization_partition
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func

from smelt import knobs
from smelt.errors import FallbackWarning, SmeltError
from smelt.frontends.torch.lower import Lowering
from smelt.frontends.torch.program import Program
from smelt.frontends.torch.table import decompositions

__all__ = ["backend"]


def backend(
    module: torch.fx.GraphModule, inputs: Sequence[Any], *, mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:  # fmt: skip
    """Compile what Dynamo has traced.  `options` are settings of `smelt.config`."""
    settings = dict(options or {})

    def compiler(guarded: bool) -> Callable[..., Any]:
        def run(traced: torch.fx.GraphModule, examples: Sequence[Any]) -> Any:
            return compile_traced(traced, settings, guarded=guarded)

        return run

    build = aot_autograd(
        fw_compiler=compiler(True), bw_compiler=compiler(False),
        inference_compiler=compiler(True), decompositions=decompositions(),
        partition_fn=min_cut_rematerialization_partition,
    )  # fmt: skip
    return build(module, inputs)


def compile_traced(
    traced: torch.fx.GraphModule, settings: Mapping[str, Any], *, guarded: bool
) -> Callable[..., Any]:
    """A traced program of pure operators as a function of one list, which it empties."""
    try:
        with knobs.config(settings):
            for node in traced.graph.nodes:
                if node.op == "placeholder":
                    node.meta["smelt_guarded"] = guarded
            program = Program(traced, Lowering(traced.graph))
    except Exception as error:
        if knobs.STRICT.get():
            raise
        warnings.warn(FallbackWarning(graph="a graph", reason=_told(error)), stacklevel=2)
        return make_boxed_func(traced.forward)
    return boxed(program.call, settings)


def _told(error: Exception) -> str:
    """What an error says, in one line."""
    if isinstance(error, SmeltError):
        return error.message
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


def boxed(call: Callable[[list[Any]], Any], settings: Mapping[str, Any]) -> Callable[..., Any]:
    """`call` under settings, marked as emptying its list of arguments."""

    def configured(args: list[Any]) -> Any:
        with knobs.config(settings):
            return call(args)

    found: Any = configured if settings else call
    found._boxed_call = True
    return found
