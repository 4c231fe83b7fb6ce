"""Programs that PyTorch saves, and that another process loads without tracing them again.

    made = torch.compile(f, fullgraph=True, backend="smelt").aot_compile(((x,), {}))
    made.save_compiled_function("f.pt")                              # one process
    with open("f.pt", "rb") as file:                                 # another one
        f = torch.compiler.load_compiled_function(file)

The file holds PyTorch's guards and, of ours, the graph that Dynamo has traced, not machine code: a
loaded program is compiled for the machine that loads it, from the cache of kernels where it knows
them.  So a file outlives an upgrade of Smelt and a move to another processor.  What PyTorch keeps
of its own accord (`dynamo.caching_precompile`) is kept and loaded in the same way.

What makes a graph compile differently lies outside of it (whether gradients are followed, the
region of autocast) and is saved with it.  Guards are PyTorch's: those that the compiler adds are
made while the program is saved, and one that a loaded program would need beyond them is an error.
"""

# PyTorch is optional, and types must check without it.
# pyright: reportMissingImports=false, reportUnknownParameterType=false
# pyright: reportUntypedBaseClass=false, reportUnknownMemberType=false

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch._dynamo import config as dynamo
from torch._dynamo.aot_compile_types import SerializableCallable
from torch._dynamo.precompile_context import BackendCacheArtifact, PrecompileContext
from torch._dynamo.utils import get_metrics_context
from torch._functorch import config as functorch
from torch._guards import CompileContext, CompileId, TracingContext, compile_context, tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx._graph_pickler import GraphPickler, Options
from torch.fx.experimental.sym_node import SymNode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from smelt.errors import UnsupportedError, reason_of
from smelt.frontends.torch.backend import compiled
from smelt.frontends.torch.fake_facts import Told

__all__ = ["Draft", "SavedProgram"]

_FORMAT = 2
"""Counts up when what is written changes."""
_NOTES = ("stack_trace", "tensor_dict", "nn_module_stack")
"""The notes at a node that are written."""


class Draft:
    """A traced program that PyTorch wants to save, written down before it is compiled: that changes
    the graph."""

    def __init__(
        self,
        module: torch.fx.GraphModule,
        inputs: Sequence[Any],
        settings: Mapping[str, Any],
        told: Told,
    ) -> None:
        self._mode = TracingContext.get().fake_mode
        self._key = str(getattr(module, "_backend_id", ""))
        self._text, self._failure = b"", ""
        try:
            self._text = _written(module, inputs, settings, told)
        except Exception as error:  # noqa: BLE001 - of what a graph may hold and no text can
            self._failure = reason_of(error)

    @contextmanager
    def compiling(self) -> Generator[None]:
        """While the program is compiled: what PyTorch itself would save of it is left out."""
        with functorch.patch(force_autograd_cache=False, strict_autograd_cache=False):
            yield

    def finish(self, made: Callable[..., Any]) -> Callable[..., Any]:
        """What a caller gets for the compiled program; PyTorch's cache gets what it keeps."""
        head = json.dumps({"format": _FORMAT, "guards": sorted(_guards(self._mode))})
        program = SavedProgram(made, self._failure or head.encode() + b"\n" + self._text)
        if not dynamo.caching_precompile:
            return program
        if not self._failure:
            kept = SavedProgram.serialize_compile_artifacts(program)
            PrecompileContext.record_artifact(_Kept(key=self._key, content=kept))
        return made


class SavedProgram(SerializableCallable):
    """A compiled program that PyTorch can save."""

    def __init__(self, call: Callable[..., Any], text: bytes | str) -> None:
        self._call = call
        self._text = text

    def __call__(self, *args: Any) -> Any:
        return self._call(*args)

    @classmethod
    def serialize_compile_artifacts(cls, fn: Any) -> bytes:
        """Raises UnsupportedError if the graph holds what cannot be written down."""
        if isinstance(fn._text, str):
            raise UnsupportedError(what=f"saving this program: {fn._text}")
        return fn._text

    @classmethod
    def deserialize_compile_artifacts(cls, data: bytes) -> SavedProgram:
        """Raises UnsupportedError for what another version of Smelt has written, and if the program
        now needs what the saved guards do not ask."""
        head, _, text = data.partition(b"\n")
        told = json.loads(head)
        if told["format"] != _FORMAT:
            raise UnsupportedError(
                what=f"loading a program saved in format {told['format']}"
                f" (this version reads {_FORMAT})"
            )
        return cls(_compiled(text, told["guards"]), data)


class _Kept(BackendCacheArtifact[Any]):
    """A program in the cache of what Dynamo has traced."""

    def after_deserialization(self) -> Any:
        return SavedProgram.deserialize_compile_artifacts(self.content)


@dataclass(frozen=True, slots=True)
class _Around:
    """What is true around a program while it is traced, and decides what becomes of it."""

    gradients: bool
    inference: bool
    autocast: bool
    autocast_dtype: Any
    autocast_keeps: bool
    default_dtype: Any

    @classmethod
    def now(cls) -> _Around:
        return cls(
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch.is_autocast_enabled("cpu"),
            torch.get_autocast_dtype("cpu"),
            torch.is_autocast_cache_enabled(),
            torch.get_default_dtype(),
        )

    @contextmanager
    def again(self) -> Generator[None]:
        usual = torch.get_default_dtype()
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode(self.inference))
            stack.enter_context(torch.set_grad_enabled(self.gradients))
            stack.enter_context(
                torch.autocast("cpu", self.autocast_dtype, self.autocast, self.autocast_keeps)
            )
            stack.callback(torch.set_default_dtype, usual)
            torch.set_default_dtype(self.default_dtype)
            yield


class _Pickler(GraphPickler):
    """Also of views, whose bases name their mode: it is another one where they are loaded."""

    def reducer_override(self, obj: Any) -> Any:
        return (_none, ()) if isinstance(obj, FakeTensorMode) else super().reducer_override(obj)


def _none() -> None:
    return None


def _written(
    module: torch.fx.GraphModule, inputs: Sequence[Any], settings: Mapping[str, Any], told: Told
) -> bytes:
    """A program as bytes."""
    if next(module.parameters(), None) is not None:
        raise UnsupportedError(what="parameters inside of a graph")
    graph = torch.fx.Graph()
    found: dict[torch.fx.Node, torch.fx.Node] = {}
    graph.output(graph.graph_copy(module.graph, found))
    for node, copy in found.items():
        stack = node.meta.get("nn_module_stack") or {}  # with classes, which may be local ones
        copy.meta["nn_module_stack"] = {k: (str(path), None) for k, (path, _) in stack.items()}
    given = module.graph.find_nodes(op="placeholder")
    sources = [getattr(n, "_dynamo_source", None) for n in given]
    parts = {
        "module": torch.fx.GraphModule(module, graph),
        "sources": sources,
        "inputs": [*map(_without_data, inputs, sources)],
        "numbers": [*map(_number, given)],
        "settings": dict(settings),
        "told": told,
        "around": _Around.now(),
    }
    options = Options(ops_filter=None, node_metadata_key_filter=_NOTES.__contains__)
    return _Pickler.dumps(parts, options)


def _compiled(text: bytes, guards: Sequence[str]) -> Callable[..., Any]:
    """What `backend` makes of a program that was saved."""
    mode = FakeTensorMode(shape_env=ShapeEnv())
    parts: Any = GraphPickler.loads(text, mode)
    module = parts["module"]
    module.recompile()
    module.meta["dynamo_compile_id"] = None  # says that the graph is Dynamo's
    module._param_name_to_source = {}
    given = module.graph.find_nodes(op="placeholder")
    for node, source in zip(given, parts["sources"], strict=True):
        node._dynamo_source = source
    for x, number in zip(parts["inputs"], parts["numbers"], strict=True):
        if number is not None:
            x.item_memo = torch.SymFloat(SymNode(number[0], mode.shape_env, float, number[1]))
    with ExitStack() as stack:
        stack.enter_context(
            compile_context(CompileContext(CompileId(frame_id=0, frame_compile_id=0)))
        )
        stack.enter_context(get_metrics_context())
        stack.enter_context(parts["around"].again())
        stack.enter_context(tracing(TracingContext(mode)))
        made = compiled(module, parts["inputs"], parts["settings"], parts["told"], saved=True)
    if more := _guards(mode).difference(guards):
        asked = ", ".join(sorted(more))
        raise UnsupportedError(what=f"loading this program, for which no guard asks {asked}")
    return made


def _without_data(x: Any, source: Any) -> Any:
    """An argument as the compiler sees it."""
    context = TracingContext.get()
    if not isinstance(x, torch.Tensor) or context.fake_mode is None:
        return x
    return context.fake_mode.from_tensor(
        x, static_shapes=False, symbolic_context=context.tensor_to_context.get(x), source=source
    )


def _number(node: torch.fx.Node) -> tuple[Any, float] | None:
    """What the shape environment calls an argument that is a float, and its value in the traced
    call; None for others.  Without them nothing could be decided by the value, as it was."""
    known = getattr(node.meta.get("example_value"), "item_memo", None)
    if not isinstance(known, torch.SymFloat) or known.node.hint is None:
        return None
    return known.node._expr, known.node.hint


def _guards(mode: Any) -> frozenset[str]:
    """What is asked of the sizes of a program."""
    return frozenset(str(g.expr) for g in mode.shape_env.guards)
