"""Load ONNX models and run them: `smelt.onnx.load`.

    model = sm.onnx.load("model.onnx")
    model.run(None, {"input_ids": ids, "attention_mask": mask})

A model is recorded once for all sizes, as a function under `jit`. Where a value that is known only
in the call decides a shape, or an operator has no rule, the model is evaluated call by call.
"""

from __future__ import annotations

import keyword
import mmap
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from inspect import Parameter, Signature
from pathlib import Path
from typing import Any

import numpy as np

import smelt as sm
from smelt.errors import (
    ArgumentError,
    FallbackWarning,
    OnnxFileError,
    OnnxTypeError,
    SaveError,
    UnsupportedError,
    warn_at_origin,
)
from smelt.frontends.array.ahead_of_time import Lowered
from smelt.frontends.array.array import Array
from smelt.frontends.array.bind_args import Options
from smelt.frontends.array.jit import Jit
from smelt.frontends.array.number import Number
from smelt.frontends.array.trace import Trace
from smelt.knobs import CONSTANTS_EXTRA, config
from smelt.onnx.evaluate import Evaluation, Fallback
from smelt.onnx.external import ExternalData
from smelt.onnx.known import Known, Value, object_array
from smelt.onnx.listing import list_nodes
from smelt.onnx.model import Graph, Model, Port, parse
from smelt.onnx.row import NeedsValueError, computable
from smelt.onnx.table import row_of
from smelt.onnx.tensors import dtype_of, type_text
from smelt.python.imports import fork_safe_import

MAX_FILE_BYTES = 2 << 30
MAX_VALUE_INPUT = 64
"""Maximum elements of an integer input whose elements decide shapes inside a recording."""


class NodeArg:
    """An input or output, with the attributes of onnxruntime's NodeArg."""

    __slots__ = ("name", "shape", "type")

    def __init__(self, port: Port) -> None:
        self.name = port.name
        self.shape: list[int | str | None] | None = None if port.dims is None else list(port.dims)
        """Dimensions: a number, the name of a size, or None."""
        self.type = type_text(port.data_type) if port.kind == "tensor" else port.kind
        """The type as onnxruntime spells it, for instance tensor(float)."""

    def __repr__(self) -> str:
        return f"NodeArg(name={self.name!r}, type={self.type!r}, shape={self.shape})"


def load(
    source: str | os.PathLike[str] | bytes,
    *,
    data_folder: str | os.PathLike[str] | None = None,
    fallback: str = "reference",
) -> Session:
    """Load an ONNX model from a file or from bytes.

    Args:
        source: path of a file, or its bytes.
        data_folder: folder of external data for a model in bytes; by default the file's folder.
        fallback: "reference" computes operators without a rule by onnx's reference evaluator, if
            the package onnx is installed; "error" raises UnsupportedError for them.

    Raises:
        OnnxFileError for a damaged file, OnnxLimitError, OnnxExternalError, UnsupportedError for
        operators that nothing computes, OSError.
    """
    if fallback not in ("reference", "error"):
        raise ArgumentError.of("load", "fallback", fallback, "'reference' or 'error'")
    model, external, name = read_source(source, data_folder)
    return Session(model, external, fallback, name)


def read_source(
    source: str | os.PathLike[str] | bytes, data_folder: str | os.PathLike[str] | None = None
) -> tuple[Model, ExternalData, str]:
    """Read a model from a file or bytes: its records, its external data, the file's name."""
    if isinstance(source, (bytes, bytearray, memoryview)):
        data, folder, name = memoryview(source).cast("B"), None, "model.onnx"
    else:
        data, folder, name = _map(Path(source)), Path(source).resolve().parent, Path(source).name
    if data_folder is not None:
        folder = Path(data_folder)
    return parse(data), ExternalData(folder), name


def _map(path: Path) -> memoryview:
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > MAX_FILE_BYTES:
            raise OnnxFileError(f"{path.name} has {size} bytes; a model has at most 2 GiB")
        if not size:
            raise OnnxFileError(f"{path.name} is empty")
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


MIN_KEPT_BYTES = 1 << 24
"""Bytes of packed weights that a small model may keep: a part of what the compiler takes."""
MAX_REPEATED = 256
"""Types and shapes of feeds that are remembered with their programs."""
MAX_FIXED = 2
"""Numbers that decide shapes or branches which have programs of their own, for one model."""


class Session:
    """A loaded model; `run` has the interface of onnxruntime's InferenceSession."""

    def __init__(
        self, model: Model, external: ExternalData, fallback: str, name: str = "model.onnx"
    ) -> None:
        self.model = model
        self._listing = list_nodes(name, model.graph)
        graph = model.graph
        self._external = external
        self._constants: dict[int, Known] = {}
        self.ports = [p for p in graph.inputs if p.name not in graph.tensors]
        """Inputs as the file declares them."""
        self._optional = {p.name: p for p in graph.inputs if p.name in graph.tensors}
        self.inputs = [NodeArg(p) for p in self.ports]
        """Inputs without a default."""
        self.outputs = [NodeArg(p) for p in graph.outputs]
        self.metadata = dict(model.metadata)
        """Custom properties of the file."""
        self._programs: dict[tuple[Any, ...], sm.jit] = {}  # type: ignore[valid-type]
        self._repeated: dict[Any, tuple[Any, list[str]]] = {}
        """Program and names of its arguments for feeds of these types and shapes, see `_key`."""
        self._fixed: set[tuple[Any, ...]] = set()
        """Names and bytes of numbers that decide shapes or branches and have programs."""
        self._values = _value_inputs(graph)
        self._check_constants()
        self._fallback = _reference(fallback)
        self._missing = _missing_operators(model)
        self.reasons: list[str] = []
        """Why the model is evaluated call by call rather than as one program; else empty."""
        self.fallback_calls: dict[str, int] = {}
        """Operators without a rule -> calls that onnx's reference evaluator has computed."""
        if self._missing and self._fallback is None:
            listed = ", ".join(f"{name} ({n})" for name, n in self._missing.items())
            raise UnsupportedError(
                f"operators without a rule: {listed}",
                hint="Install the package onnx, whose reference evaluator computes them.",
            )

    def _check_constants(self) -> None:
        """Decode constants of the outermost graph, which checks their sizes."""
        evaluation = Evaluation(self.model, self._constants, self._external)
        for tensor in self.model.graph.tensors.values():
            evaluation.constant(tensor)

    def __repr__(self) -> str:
        names = ", ".join(f"{a.name}: {a.type}{a.shape}" for a in self.inputs)
        return f"<smelt.onnx model, {len(self.model.graph.nodes)} nodes, inputs {names}>"

    @property
    def programs(self) -> list[Any]:
        """Jitted functions that calls have made so far, one for each choice of outputs."""
        return list(self._programs.values())

    # Calls

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: Any = None,
    ) -> list[Any]:
        """Return outputs as NumPy arrays, in the order of their names.

        Args:
            output_names: names of outputs, or None for all, as an empty list is.
            input_feed: arrays, nested lists or numbers by the names of inputs.
            run_options: accepted and ignored.

        Raises ArgumentError for unknown or missing names, OnnxTypeError for other types.
        """
        key = self._key(output_names, input_feed)
        if (repeated := self._repeated.get(key)) is not None:
            program, order = repeated
            return [x.__array__() for x in program(*[input_feed[n] for n in order])]
        names = tuple(output_names or (a.name for a in self.outputs))
        unknown = [n for n in names if n not in {a.name for a in self.outputs}]
        if unknown:
            listed = ", ".join(a.name for a in self.outputs)
            raise ArgumentError(f"run: no output {unknown[0]!r}; the model has {listed}")
        feeds = self._feeds(input_feed)
        results = self._run(names, feeds)
        if key is not None and all(isinstance(x, Array) for x in results):
            self._note_repeatable(key, names, feeds)
        return [_to_numpy(x) for x in results]

    def _key(self, names: Sequence[str] | None, feed: Mapping[str, Any]) -> Any:
        """Return what determines the program of a call: types, shapes, numbers that choose it.

        None for feeds that are not plain arrays, or are elements that a program gets as numbers.
        """
        key: list[Any] = [None if names is None else tuple(names)]
        for name, x in feed.items():
            if x.__class__ is not np.ndarray or (name in self._values and x.ndim):
                return None
            key.append((name, x.dtype, x.tobytes() if name in self._values else x.shape))
        return tuple(key)

    def _note_repeatable(self, key: Any, names: tuple[str, ...], feeds: Mapping[str, Any]) -> None:
        """Keep the program of a call that has succeeded, if its arguments are the feeds."""
        program, arguments = self._program(names, feeds)
        order = [n for n, x in feeds.items() if any(x is a for a in arguments)]
        if len(order) == len(arguments) and not self.reasons:
            if len(self._repeated) >= MAX_REPEATED:
                self._repeated.clear()
            self._repeated[key] = program, order

    def __call__(self, **feeds: Any) -> dict[str, Any]:
        """Return all outputs by name, for inputs by name."""
        names = [a.name for a in self.outputs]
        return dict(zip(names, self.run(None, feeds), strict=True))

    def get_inputs(self) -> list[NodeArg]:
        """Return the inputs, as onnxruntime does."""
        return self.inputs

    def get_outputs(self) -> list[NodeArg]:
        """Return the outputs, as onnxruntime does."""
        return self.outputs

    def get_providers(self) -> list[str]:
        """Return the name of the one provider."""
        return ["CPUExecutionProvider"]

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        values: Mapping[str, Any] | None = None,
        isa: str | Sequence[str] = "host",
        hints: Mapping[str, int] | Sequence[Mapping[str, int]] = (),
    ) -> None:
        """Write the model as a compiled program, which `sm.load` runs without this file.

        The loaded function takes the model's inputs in order or by name, and returns a dict of its
        outputs.

        Args:
            path: the file to write.
            values: elements of inputs that decide shapes or branches; they are constants of the
                program.
            isa: instruction sets to hold code for, and
            hints: likely values of the sizes that the model names; see `smelt.save`.

        Raises:
            ArgumentError for missing values, SaveError for a model that is evaluated call by call,
            and what compilation raises.
        """
        if self._missing:
            raise SaveError(
                what=f"a model with operators without a rule ({', '.join(self._missing)})"
            )
        names = tuple(a.name for a in self.outputs)
        fixed = dict(values or {})
        unknown = [p.name for p in self.ports if p.name in self._values and p.name not in fixed]
        if unknown:
            raise ArgumentError(
                f"save: the elements of {', '.join(unknown)} decide shapes or branches",
                hint=f"Say what they are: values={{{unknown[0]!r}: ..}}.",
            )
        free = [p for p in self.ports if p.name not in fixed]
        program = self._jitted(names, [p.name for p in self.ports]).options.function

        def model(*arguments: Any) -> dict[str, Any]:
            feeds = dict(zip((p.name for p in free), arguments, strict=True)) | constants
            return dict(zip(names, program(*(feeds[p.name] for p in self.ports)), strict=True))

        constants = {name: _numbers(np.asarray(x)) for name, x in fixed.items()}
        kind = Parameter.POSITIONAL_OR_KEYWORD
        words = _identifiers(p.name for p in free).values()
        model.__signature__ = Signature([Parameter(w, kind) for w in words])  # type: ignore[attr-defined]
        specs = _specs(free)
        try:
            sm.save(model, Path(path), *specs, isa=isa, hints=hints or _typical_sizes(specs))
        except NeedsValueError as error:
            raise SaveError(what=f"a model whose shapes depend on elements ({error})") from error

    def program(
        self, feeds: Mapping[str, Any], output_names: Sequence[str] | None = None
    ) -> tuple[Any, list[Any]]:
        """Return the jitted function of the model and its arguments for these inputs.

        `sm.explain(*model.program(feeds))` needs them apart: `f, args = ..; sm.explain(f, *args)`.
        """
        names = tuple(output_names or (a.name for a in self.outputs))
        return self._program(names, self._feeds(feeds))

    def _feeds(self, feed: Mapping[str, Any]) -> dict[str, Any]:
        missing = [p.name for p in self.ports if p.name not in feed and p.kind != "optional"]
        ports = {p.name: p for p in self.ports} | self._optional
        unknown = [n for n in feed if n not in ports]
        if missing or unknown:
            what = f"no input {unknown[0]!r}" if unknown else f"missing inputs {', '.join(missing)}"
            raise ArgumentError(f"run: {what}; the model has {', '.join(ports)}")
        return {name: _converted(ports[name], x) for name, x in feed.items()}

    def _run(self, names: tuple[str, ...], feeds: Mapping[str, Any]) -> list[Any]:
        if not self.reasons and not self._missing and _are_computable(feeds):
            try:
                program, arguments = self._program(names, feeds)
                return list(program(*arguments))
            except (NeedsValueError, UnsupportedError) as error:
                self.reasons.append(str(error) or "an element decides a shape")
        evaluation = Evaluation(self.model, self._constants, self._external, self._fallback)
        env = {name: _eager_value(x) for name, x in feeds.items()}
        results = self._evaluate(evaluation, env, names)
        if evaluation.fallback_calls and not self.fallback_calls:
            self._warn(evaluation.fallback_calls)
        for title, n in evaluation.fallback_calls.items():
            self.fallback_calls[title] = self.fallback_calls.get(title, 0) + n
        return results

    def _warn(self, operators: Mapping[str, int]) -> None:
        """Warn once that operators run outside of programs."""
        warn_at_origin(
            FallbackWarning(
                graph=", ".join(operators),
                reason="onnx's reference evaluator computes what has no rule",
                hint="`fallback_calls` counts; load(.., fallback='error') refuses such a model.",
            )
        )

    def _evaluate(
        self, evaluation: Evaluation, env: dict[str, Value], names: Sequence[str]
    ) -> list[Any]:
        graph = self.model.graph
        for p in self.ports:
            env.setdefault(p.name, None)
        results = dict(
            zip((p.name for p in graph.outputs), evaluation.graph(graph, env), strict=True)
        )
        return [results[name] for name in names]

    def _program(self, names: tuple[str, ...], feeds: Mapping[str, Any]) -> tuple[Any, list[Any]]:
        """Return the program for these inputs, and its arguments.

        The first numbers that decide shapes or branches are constants of programs of their own,
        whose calls repeat natively; elements of arrays, and other numbers, are arguments.
        """
        values = {n: x for n, x in feeds.items() if n in self._values and isinstance(x, np.ndarray)}
        # by bytes: -0.0 equals 0.0, and no NaN equals itself
        fixed = tuple((n, x.tobytes()) for n, x in values.items() if not x.ndim)
        if fixed not in self._fixed:
            if len(self._fixed) < MAX_FIXED:
                self._fixed.add(fixed)
            else:
                fixed = ()
        numbers = {n: values[n].item() for n, _ in fixed}
        key = (*names, "", *feeds, fixed)
        program = self._programs.get(key)
        if program is None:
            program = self._programs[key] = self._jitted(names, list(feeds), numbers)
        arguments = [
            _numbers(x) if n in values else x for n, x in feeds.items() if n not in numbers
        ]
        return program, arguments

    def _jitted(
        self, names: tuple[str, ...], inputs: list[str], numbers: Mapping[str, Any] = {}
    ) -> Any:
        """Return the jitted model of inputs; `numbers` are those of them that are constants."""
        free = [name for name in inputs if name not in numbers]
        ports = {p.name: p for p in self.ports} | self._optional

        def model(*arguments: Any) -> Any:
            evaluation = Evaluation(
                self.model, self._constants, self._external, listing=self._listing
            )
            env: dict[str, Value] = {}
            sizes: dict[str, Any] = {}
            for name, x in [*zip(free, arguments, strict=True), *numbers.items()]:
                if name in self._values:
                    env[name] = _value_argument(ports[name], x)
                else:
                    _fix_dims(ports[name], x, sizes)
                    env[name] = x
            results = self._evaluate(evaluation, env, names)
            return [evaluation.array(x) for x in results]

        kept = sum(x.elements.nbytes for x in self._constants.values())
        return _ModelProgram(Options(model), max(kept, MIN_KEPT_BYTES))


class _ModelProgram(Jit[..., Any]):
    """A jitted model, which may keep packed weights beyond the memory that fusion saves.

    As many bytes as the file has weights: other runtimes pack them when they load a model, too.
    """

    def __init__(self, options: Options, kept_bytes: int) -> None:
        super().__init__(options)
        self.kept_bytes = kept_bytes

    def _init_args(self) -> tuple[Any, ...]:
        return self.options, self.kept_bytes

    def _settings(self) -> config:
        extra = CONSTANTS_EXTRA.get()
        return config(constants_extra=extra if extra is None else max(extra, self.kept_bytes))

    def record(self, *args: Any, **kwargs: Any) -> Lowered:
        """Record ahead of time; the settings hold where the result is compiled."""
        lowered = super().record(*args, **kwargs)
        return Lowered(lowered.trace, lowered.bound, lowered.arguments, self._settings())

    def find_trace(self, *args: Any, **kwargs: Any) -> tuple[Trace, tuple[int, ...]]:
        """Return a valid recording and its sizes, compiled under the settings."""
        trace, sizes = super().find_trace(*args, **kwargs)
        if trace.compiled is None:
            with self._settings():
                assert trace.executable
        return trace, sizes


# Inputs


def _identifiers(names: Iterable[str]) -> dict[str, str]:
    """Return an identifier of Python for each name: `a.b` and `a_b` get different ones."""
    words: dict[str, str] = {}
    for name in dict.fromkeys(names):
        word = re.sub(r"\W", "_", name)
        word = word if word.isidentifier() and not keyword.iskeyword(word) else f"x_{word}"
        while word in words.values():
            word += "_"
        words[name] = word
    return words


def _specs(ports: Sequence[Port]) -> list[Any]:
    """Return the inputs' types; an unnamed dimension is a size of its own."""
    dims_of: list[list[int | str]] = []
    for p in ports:
        if p.kind != "tensor" or p.dims is None:
            raise SaveError(what=f"the input {p.name} without a shape")
        dims_of.append([f"{p.name}\0{k}" if d is None else d for k, d in enumerate(p.dims)])
    words = _identifiers(d for dims in dims_of for d in dims if isinstance(d, str))
    return [
        sm.spec([d if isinstance(d, int) else words[d] for d in dims], dtype_of(p.data_type))
        for p, dims in zip(ports, dims_of, strict=True)
    ]


TYPICAL_SIZES = {"batch": 8, "seq": 128, "length": 128, "height": 640, "width": 640}
"""Likely values of sizes by parts of their names, for a model that no call has been seen of."""


def _typical_sizes(specs: Sequence[Any]) -> dict[str, int]:
    names = [str(d) for x in specs for d in x.shape if not isinstance(d, int)]
    return {
        name: next((n for part, n in TYPICAL_SIZES.items() if part in name.lower()), 64)
        for name in names
    }


def _converted(port: Port, x: Any) -> Any:
    """Return a fed value as NumPy; raises OnnxTypeError for another type or shape."""
    if port.kind != "tensor":
        return x if x is None or not isinstance(x, list) else [np.asarray(e) for e in x]  # pyright: ignore[reportUnknownVariableType]
    expected = dtype_of(port.data_type)
    plain = not hasattr(x, "dtype")
    if hasattr(x, "__dlpack__") and not isinstance(x, np.ndarray):
        x = np.from_dlpack(x) if not isinstance(x, Array) else np.asarray(x)
    if expected.kind == "O":
        array = np.asarray(x).astype(object)
    else:
        array = _from_list(port, x, expected) if plain else np.asarray(x)
    if array.dtype != expected:
        raise OnnxTypeError(name=port.name, found=array.dtype, expected=expected)
    dims = port.dims
    if dims is not None and (
        len(dims) != array.ndim
        or any(isinstance(d, int) and d != n for d, n in zip(dims, array.shape, strict=True))
    ):
        raise OnnxTypeError(
            name=port.name, found=f"of shape {list(array.shape)}", expected=list(dims)
        )
    return array


def _from_list(port: Port, x: Any, expected: np.dtype[Any]) -> Any:
    """Return a list as an array; raises OnnxTypeError if its type cannot hold it."""
    try:
        listed = np.asarray(x)
        casting = "same_kind" if listed.dtype.kind in "fc" else "unsafe"
        array = listed.astype(expected, casting=casting)
        if listed.dtype.kind in "iu" and expected.kind in "iu" and (array != listed).any():
            raise OverflowError("numbers out of range")
    except (TypeError, ValueError, OverflowError) as error:
        raise OnnxTypeError(name=port.name, found=f"a list ({error})", expected=expected) from error
    return array


def _fix_dims(port: Port, x: Any, sizes: dict[str, Any]) -> None:
    """Record guards: fixed dimensions are numbers, and dimensions of one name are equal.

    Sizes record what they are asked, so that no answer is used here. Where dimensions of one name
    differ, the operator that reads both reports it.
    """
    for d, n in zip(port.dims or (), x.shape, strict=False):
        if isinstance(d, int):
            int(n)
        elif isinstance(d, str):
            bool(sizes.setdefault(d, n) == n)


def _are_computable(feeds: Mapping[str, Any]) -> bool:
    return all(isinstance(x, np.ndarray) and computable(x.dtype) for x in feeds.values())  # pyright: ignore[reportUnknownVariableType]


def _numbers(x: Any) -> Any:
    """Return an array's elements as arguments of a program: a number, or a tuple of numbers."""
    return tuple(x.tolist()) if x.ndim else x.item()


def _value_argument(port: Port, x: Any) -> Known:
    """Return the elements that a program got as numbers."""
    flat = list(x) if isinstance(x, tuple) else [x]
    shape = (len(flat),) if isinstance(x, tuple) else ()
    return Known(object_array(shape, flat), dtype_of(port.data_type))


def _eager_value(x: Any) -> Value:
    if isinstance(x, list):
        return [_eager_value(e) for e in x]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(x, np.ndarray):
        small = x.size <= MAX_VALUE_INPUT and x.dtype.kind in "iub"
        return Known(x) if small or not computable(x.dtype) else sm.asarray(x)
    return x


def _to_numpy(x: Any) -> Any:
    if isinstance(x, list):
        return [_to_numpy(e) for e in x]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(x, Known):
        return (
            np.array(x.elements)
            if not x.is_symbolic
            else np.array([int(e) for e in x.ints()], x.dtype).reshape(x.shape)
        )
    if isinstance(x, Number):
        return np.asarray(x.value())
    return None if x is None else np.asarray(x)


# Analysis at load


def _value_inputs(graph: Graph) -> frozenset[str]:
    """Return inputs of rank 0 or 1 whose elements decide shapes or branches."""
    wanted: set[str] = set()
    _mark(graph, wanted)
    chosen: set[str] = set()
    for p in graph.inputs:
        if p.name in wanted and p.name not in graph.tensors and p.kind == "tensor":
            small = p.dims is not None and len(p.dims) < 2
            if small and p.data_type and dtype_of(p.data_type).kind in "iuf":
                chosen.add(p.name)
    return frozenset(chosen)


def _mark(graph: Graph, wanted: set[str]) -> None:
    """Add names of values, in this graph and around it, whose elements must be known."""
    for node in reversed(graph.nodes):
        for inner in node.graphs():
            _mark(inner, wanted)
        row = row_of(node.domain, node.op)
        positions: Sequence[int] = () if row is None else row.values
        if node.op in ("If", "Loop"):
            positions = (0,) if node.op == "If" else (0, 1)
        elif node.op not in ("Shape", "Size") and any(name in wanted for name in node.outputs):
            positions = range(len(node.inputs))
        among = range(len(node.inputs)) if -1 in positions else positions
        wanted.update(node.inputs[k] for k in among if k < len(node.inputs))


def _missing_operators(model: Model) -> dict[str, int]:
    """Return operators without a rule -> number of nodes, in the whole model."""
    counts: dict[str, int] = {}
    functions = list(model.functions.values())
    pending = [model.graph.nodes, *(f.nodes for f in functions)]
    while pending:
        for node in pending.pop():
            is_function = (node.domain, node.op, node.overload) in model.functions
            if not is_function and row_of(node.domain, node.op) is None:
                counts[node.title] = counts.get(node.title, 0) + 1
            pending += [g.nodes for g in node.graphs()]
    return counts


def _reference(fallback: str) -> Fallback | None:
    """Return the fallback by onnx's reference evaluator; None if it is off or not installed."""
    if fallback == "error":
        return None
    try:
        return fork_safe_import("smelt.onnx.reference").compute
    except ModuleNotFoundError:
        return None
