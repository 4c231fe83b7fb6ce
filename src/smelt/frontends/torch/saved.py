"""Save compiled programs through PyTorch and load them without tracing again.

    program = torch.compile(f, fullgraph=True, backend="smelt").aot_compile(((x,), {}))
    program.save_compiled_function("f.pt")                           # one process
    with open("f.pt", "rb") as file:                                 # another one
        f = torch.compiler.load_compiled_function(file)

The file holds PyTorch's guards and, of ours, the graph that Dynamo has traced, not machine code: a
loaded program is compiled for the machine that loads it, from the kernel cache where it has them.
So a file outlives an upgrade of Smelt and a move to another processor. What PyTorch keeps by itself
(`dynamo.caching_precompile`) is kept and loaded in the same way.

State outside of a graph that changes its compilation (whether gradients are followed, the region of
autocast) is saved with it. Guards are PyTorch's: those that the compiler adds are made while the
program is saved, and it is an error if a loaded program needs another one.
"""

# pyright: reportUnknownMemberType=false

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
from smelt.frontends.torch.backend import compile_graph
from smelt.frontends.torch.fake_facts import GraphFacts

_FORMAT = 4
"""Version of the file format; increase it when what is written changes, or the path of a class."""
_METADATA_KEYS = ("stack_trace", "tensor_dict", "nn_module_stack")
"""Metadata keys of nodes that are written."""


class Draft:
    """A traced program that PyTorch wants to save, serialized before it is compiled.

    Compiling changes the graph.
    """

    def __init__(self, module: torch.fx.GraphModule, *more: Any) -> None:
        """Serialize a graph, with its inputs, settings and facts."""
        self._mode = TracingContext.get().fake_mode
        self._key = str(getattr(module, "_backend_id", ""))
        self._text, self._failure = b"", ""
        try:
            self._text = _serialize(module, *more)
        except Exception as error:  # noqa: BLE001 - a graph may hold what cannot be written
            self._failure = reason_of(error)

    @contextmanager
    def compiling(self) -> Generator[None]:
        """Disable what PyTorch itself would save while the program is compiled."""
        with functorch.patch(force_autograd_cache=False, strict_autograd_cache=False):
            yield

    def finish(self, compiled_program: Callable[..., Any]) -> Callable[..., Any]:
        """Return the program to call.

        That is one which PyTorch can save; with `caching_precompile` it is recorded in PyTorch's
        cache instead.
        """
        head = json.dumps({"format": _FORMAT, "guards": sorted(_guard_texts(self._mode))})
        program = SavedProgram(
            compiled_program, self._failure or head.encode() + b"\n" + self._text
        )
        if not dynamo.caching_precompile:
            return program
        if not self._failure:
            content = SavedProgram.serialize_compile_artifacts(program)
            PrecompileContext.record_artifact(_ProgramArtifact(key=self._key, content=content))
        return compiled_program


class SavedProgram(SerializableCallable):
    """A compiled program that PyTorch can save."""

    def __init__(self, call: Callable[..., Any], text: bytes | str) -> None:
        self._call = call
        self._text = text

    def __call__(self, *args: Any) -> Any:
        return self._call(*args)

    @classmethod
    def serialize_compile_artifacts(cls, fn: Any) -> bytes:
        """Return the bytes of a program; raises UnsupportedError if its graph cannot be written."""
        if isinstance(fn._text, str):
            raise UnsupportedError(what=f"saving this program: {fn._text}")
        return fn._text

    @classmethod
    def deserialize_compile_artifacts(cls, data: bytes) -> SavedProgram:
        """Compile a saved program.

        Raises UnsupportedError for what another version of Smelt has written, and if the program
        now needs a guard that was not saved.
        """
        head, _, text = data.partition(b"\n")
        header = json.loads(head)
        if header["format"] != _FORMAT:
            raise UnsupportedError(
                what=f"loading a program saved in format {header['format']}"
                f" (this version reads {_FORMAT})"
            )
        return cls(_deserialize(text, header["guards"]), data)


class _ProgramArtifact(BackendCacheArtifact[Any]):
    """A program in PyTorch's cache of what Dynamo has traced."""

    def after_deserialization(self) -> Any:
        return SavedProgram.deserialize_compile_artifacts(self.content)


@dataclass(frozen=True, slots=True)
class _TracingState:
    """Global state during tracing that changes how a program is compiled."""

    gradients: bool
    inference: bool
    autocast: bool
    autocast_dtype: Any
    autocast_keeps: bool
    default_dtype: Any

    @classmethod
    def now(cls) -> _TracingState:
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
    """Pickles views without the mode that their bases refer to: the loading process has another."""

    def reducer_override(self, obj: Any) -> Any:
        return (
            (_return_none, ()) if isinstance(obj, FakeTensorMode) else super().reducer_override(obj)
        )


def _return_none() -> None:
    return None


def _serialize(
    module: torch.fx.GraphModule,
    inputs: Sequence[Any],
    settings: Mapping[str, Any],
    facts: GraphFacts,
) -> bytes:
    if next(module.parameters(), None) is not None:
        raise UnsupportedError(what="parameters inside of a graph")
    graph = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    graph.output(graph.graph_copy(module.graph, copies))
    for node, copy in copies.items():
        stack = node.meta.get("nn_module_stack") or {}  # its classes may be local and not picklable
        copy.meta["nn_module_stack"] = {k: (str(path), None) for k, (path, _) in stack.items()}
    arguments = module.graph.find_nodes(op="placeholder")
    sources = [getattr(n, "_dynamo_source", None) for n in arguments]
    parts = {
        "module": torch.fx.GraphModule(module, graph),
        "sources": sources,
        "inputs": [*map(_without_data, inputs, sources)],
        "numbers": [*map(_traced_float, arguments)],
        "settings": dict(settings),
        "facts": facts,
        "around": _TracingState.now(),
    }
    options = Options(ops_filter=None, node_metadata_key_filter=_METADATA_KEYS.__contains__)
    return _Pickler.dumps(parts, options)


def _deserialize(text: bytes, guards: Sequence[str]) -> Callable[..., Any]:
    """Compile a program that was saved, as `backend` would."""
    mode = FakeTensorMode(shape_env=ShapeEnv())
    parts: Any = GraphPickler.loads(text, mode)
    module = parts["module"]
    module.recompile()
    module.meta["dynamo_compile_id"] = None  # marks the graph as Dynamo's
    module._param_name_to_source = {}
    arguments = module.graph.find_nodes(op="placeholder")
    for node, source in zip(arguments, parts["sources"], strict=True):
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
        compiled_program = compile_graph(
            module, parts["inputs"], parts["settings"], parts["facts"], saved=True
        )
    if new_guards := _guard_texts(mode).difference(guards):
        missing = ", ".join(sorted(new_guards))
        raise UnsupportedError(what=f"loading this program, for which no guard asks {missing}")
    return compiled_program


def _without_data(x: Any, source: Any) -> Any:
    """Return an argument as the compiler sees it, without data."""
    context = TracingContext.get()
    if not isinstance(x, torch.Tensor) or context.fake_mode is None:
        return x
    return context.fake_mode.from_tensor(
        x, static_shapes=False, symbolic_context=context.tensor_to_context.get(x), source=source
    )


def _traced_float(node: torch.fx.Node) -> tuple[Any, float] | None:
    """Return the symbol and traced value of an argument that is a float.

    None for others. Guards on the value could not be decided without it.
    """
    number = getattr(node.meta.get("example_value"), "item_memo", None)
    if not isinstance(number, torch.SymFloat) or number.node.hint is None:
        return None
    return number.node._expr, number.node.hint


def _guard_texts(mode: Any) -> frozenset[str]:
    return frozenset(str(g.expr) for g in mode.shape_env.guards)
