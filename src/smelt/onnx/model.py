"""Parse an ONNX file to frozen records: model, graphs, nodes, tensors, types.

Nothing of protobuf is left in them. Structure is checked here: each value is defined once, before
its uses, and sizes of tensors agree with their bytes (`tensors.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from smelt.errors import OnnxFileError, OnnxLimitError
from smelt.onnx.wire import INTEGER, TEXT, Reader, schemas
from smelt.python.dataclass import dataclass

MAX_NODES = 1_000_000
MAX_GRAPH_DEPTH = 32

_MODEL = schemas("""
    Model: 1 ir_version integer, 2 producer_name text, 3 producer_version text, 4 domain text
    Model: 5 model_version integer, 6 description text, 7 graph Graph, 8 opsets *Opset
    Model: 14 metadata *Entry, 25 functions *Function
    Opset: 1 domain text, 2 version integer
    Entry: 1 key text, 2 value text
    Function: 1 name text, 4 inputs *text, 5 outputs *text, 6 attributes *text, 7 nodes *Node
    Function: 9 opsets *Opset, 10 domain text, 11 defaults *Attribute, 13 overload text
    Graph: 1 nodes *Node, 2 name text, 5 tensors *Tensor, 11 inputs *Port, 12 outputs *Port
    Graph: 13 values *Port, 15 sparse *Sparse
    Node: 1 inputs *text, 2 outputs *text, 3 name text, 4 op text, 5 attributes *Attribute
    Node: 7 domain text, 8 overload text
    Attribute: 1 name text, 2 f float, 3 i integer, 4 s bytes, 5 t Tensor, 6 g Graph
    Attribute: 7 floats *float, 8 ints *integer, 9 strings *bytes, 10 tensors *Tensor
    Attribute: 11 graphs *Graph, 14 tp Type, 20 type integer, 21 reference text, 22 sparse Sparse
    Port: 1 name text, 2 type Type
    Type: 1 tensor TensorType, 4 sequence Elements, 5 map Other, 8 sparse Other, 9 optional Elements
    TensorType: 1 elem integer, 2 shape Shape
    Elements: 1 elem Type
    Shape: 1 dims *Dimension
    Dimension: 1 value integer, 2 name text
    Tensor: 1 dims *integer, 2 data_type integer, 3 segment Other, 4 floats *float
    Tensor: 5 int32s *integer, 6 strings *bytes, 7 int64s *integer, 8 name text, 9 raw bytes
    Tensor: 10 doubles *double, 11 uint64s *integer, 13 external *Entry, 14 location integer
    Sparse: 1 values Tensor, 2 indices Tensor, 3 dims *integer
    Other:
""")["Model"]
"""What is read of onnx.proto's messages, with names of ours."""
_ATTRIBUTE_KINDS: dict[int, tuple[str, Any]] = {
    1: ("f", 0.0),
    2: ("i", 0),
    3: ("s", b""),
    4: ("t", None),
    5: ("g", None),
    6: ("floats", ()),
    7: ("ints", ()),
    8: ("strings", ()),
    9: ("tensors", ()),
    10: ("graphs", ()),
    11: ("sparse", None),
    13: ("tp", None),
}
"""AttributeProto.type -> its field and the value of an empty one."""


@dataclass(frozen=True, slots=True, eq=False)
class StoredTensor:
    """A tensor of the file: fields as they are stored, decoded by `tensors.decode`."""

    name: str
    dims: tuple[int, ...]
    data_type: int
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class SparseTensor:
    """A sparse tensor of the file: values at positions."""

    values: StoredTensor
    indices: StoredTensor
    dims: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output: name, ONNX type and dimensions.

    A dimension is a number, the name of a size, or None; `dims` is None if the rank is not known.
    `kind` is "tensor", "sequence", "optional", "map" or "sparse".
    """

    name: str
    kind: str = "tensor"
    data_type: int = 0
    dims: tuple[int | str | None, ...] | None = None
    element: Port | None = None
    """Type of the elements of a sequence or optional."""


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """An operator call: `inputs` and `outputs` name values; an empty name stands for none."""

    op: str
    domain: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    references: Mapping[str, str]
    """Attributes that a function's caller sets: name -> the function's attribute."""
    overload: str = ""

    @property
    def title(self) -> str:
        """Domain and name of the operator, for messages."""
        return f"{self.domain}:{self.op}" if self.domain else self.op

    def graphs(self) -> Iterator[Graph]:
        """Yield the graphs among the attributes."""
        for value in self.attributes.values():
            if isinstance(value, Graph):
                yield value
            elif isinstance(value, tuple):
                yield from (x for x in value if isinstance(x, Graph))  # pyright: ignore[reportUnknownVariableType]


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """Nodes in order, constants, inputs and outputs."""

    name: str
    nodes: tuple[Node, ...]
    tensors: Mapping[str, StoredTensor | SparseTensor]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]

    def free_names(self) -> list[str]:
        """Return names that the graph reads from around it, in order of use."""
        defined = {*self.tensors, *(p.name for p in self.inputs)}
        free: dict[str, None] = {}
        for node in self.nodes:
            used = [*node.inputs, *(n for g in node.graphs() for n in g.free_names())]
            free.update(dict.fromkeys(n for n in used if n and n not in defined))
            defined.update(node.outputs)
        free.update(dict.fromkeys(p.name for p in self.outputs if p.name not in defined))
        return list(free)


@dataclass(frozen=True, slots=True, eq=False)
class Function:
    """A function of the file, inlined where nodes call it."""

    name: str
    domain: str
    overload: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    defaults: Mapping[str, Any]
    opsets: Mapping[str, int]


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """A parsed file."""

    graph: Graph
    opsets: Mapping[str, int]
    functions: Mapping[tuple[str, str, str], Function]
    """(domain, name, overload) -> function."""
    metadata: Mapping[str, str]
    """Custom properties that the writer stored."""
    facts: Mapping[str, Any]
    """ir_version, producer_name, producer_version, domain, model_version, description."""


def parse(data: memoryview) -> Model:
    """Return the records of a file's bytes.

    Raises OnnxFileError for a damaged file, OnnxLimitError for one beyond the limits.
    """
    fields = Reader(data).message(_MODEL)
    if "graph" not in fields or not fields.get("opsets"):
        raise OnnxFileError("no ONNX model: it has no graph, or names no opset")
    builder = _Builder()
    graph = builder.graph(fields["graph"], frozenset(), 0)
    functions = [builder.function(f) for f in fields.get("functions", ())]
    return Model(
        graph,
        _opsets(fields["opsets"]),
        {(f.domain, f.name, f.overload): f for f in functions},
        {e.get("key", ""): e.get("value", "") for e in fields.get("metadata", ())},
        {
            name: fields.get(name, 0 if kind is INTEGER else "")
            for name, kind in _MODEL.values()
            if kind in (INTEGER, TEXT)
        },
    )


def domain_of(name: str) -> str:
    """Return a domain's name; ONNX's own has two spellings."""
    return "" if name == "ai.onnx" else name


def _opsets(entries: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    return {domain_of(e.get("domain", "")): e.get("version", 0) for e in entries}


class _Builder:
    """Builds records and counts nodes."""

    def __init__(self) -> None:
        self.nodes = 0

    def graph(self, fields: Mapping[str, Any], outside: frozenset[str], depth: int) -> Graph:
        if depth > MAX_GRAPH_DEPTH:
            raise OnnxLimitError(f"graphs nested more than {MAX_GRAPH_DEPTH} deep")
        tensors: dict[str, StoredTensor | SparseTensor] = {}
        for t in fields.get("tensors", ()):
            tensor = stored(t)
            self._define(tensors, tensor.name, tensor)
        for s in fields.get("sparse", ()):
            sparse = _sparse(s)
            self._define(tensors, sparse.values.name, sparse)
        inputs = tuple(_port(p) for p in fields.get("inputs", ()))
        names = [p.name for p in inputs]
        if len(set(names)) < len(names) or "" in names:
            raise OnnxFileError("an input is defined twice or has no name")
        visible = {*outside, *names, *tensors}
        nodes = self.body(fields.get("nodes", ()), visible, {*names, *tensors}, depth)
        outputs = tuple(_port(p) for p in fields.get("outputs", ()))
        for p in outputs:
            if p.name not in visible:
                raise OnnxFileError(f"no node computes the output {p.name!r}")
        return Graph(fields.get("name", ""), nodes, tensors, inputs, outputs)

    def body(
        self, nodes: Sequence[Mapping[str, Any]], visible: set[str], defined: set[str], depth: int
    ) -> tuple[Node, ...]:
        """Build nodes in order; each output is defined once, each input before its use."""
        built: list[Node] = []
        for fields in nodes:
            node = self.node(fields, visible, depth)
            for name in filter(None, node.outputs):
                if name in defined:
                    raise OnnxFileError(f"{name!r} is defined twice")
                defined.add(name)
                visible.add(name)
            built.append(node)
        return tuple(built)

    def node(self, fields: Mapping[str, Any], visible: set[str], depth: int) -> Node:
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise OnnxLimitError(f"more than {MAX_NODES:,} nodes")
        op, inputs = fields.get("op", ""), tuple(fields.get("inputs", ()))
        for name in filter(None, inputs):
            if name not in visible:
                raise OnnxFileError(f"{op} reads {name!r}, which nothing defines before it")
        attributes: dict[str, Any] = {}
        references: dict[str, str] = {}
        for a in fields.get("attributes", ()):
            name = a.get("name", "")
            if a.get("reference"):
                references[name] = a["reference"]
            else:
                attributes[name] = self.attribute(a, visible, depth)
        return Node(
            op,
            domain_of(fields.get("domain", "")),
            fields.get("name", ""),
            inputs,
            tuple(fields.get("outputs", ())),
            attributes,
            references,
            fields.get("overload", ""),
        )

    def attribute(self, fields: Mapping[str, Any], visible: set[str], depth: int) -> Any:
        kind = fields.get("type", 0)
        if not kind:  # files of the first versions leave it out
            kind = next((k for k, (name, _) in _ATTRIBUTE_KINDS.items() if name in fields), 0)
        if kind not in _ATTRIBUTE_KINDS:
            raise OnnxFileError(f"attribute {fields.get('name')!r} has the unknown type {kind}")
        name, empty = _ATTRIBUTE_KINDS[kind]
        value = fields.get(name, empty)
        if name == "t":
            return stored(value or {})
        if name == "g":
            return self.graph(value or {}, frozenset(visible), depth + 1)
        if name == "s":
            return _string(value)
        if name == "strings":
            return tuple(map(_string, value))
        if name == "tensors":
            return tuple(map(stored, value))
        if name == "graphs":
            return tuple(self.graph(g, frozenset(visible), depth + 1) for g in value)
        if name == "sparse":
            return _sparse(value or {})
        if name == "tp":
            return _port({"type": value or {}})
        return tuple(value) if name in ("floats", "ints") else value

    def function(self, fields: Mapping[str, Any]) -> Function:
        inputs = tuple(fields.get("inputs", ()))
        visible = set(inputs)
        nodes = self.body(fields.get("nodes", ()), visible, set(inputs), 0)
        outputs = tuple(fields.get("outputs", ()))
        for name in outputs:
            if name not in visible:
                raise OnnxFileError(f"no node computes the result {name!r}")
        defaults: dict[str, Any] = dict.fromkeys(fields.get("attributes", ()))
        for a in fields.get("defaults", ()):
            defaults[a.get("name", "")] = self.attribute(a, visible, 0)
        return Function(
            fields.get("name", ""),
            domain_of(fields.get("domain", "")),
            fields.get("overload", ""),
            inputs,
            outputs,
            nodes,
            defaults,
            _opsets(fields.get("opsets", ())),
        )

    def _define(self, tensors: dict[str, Any], name: str, tensor: Any) -> None:
        if name in tensors or not name:
            raise OnnxFileError(f"the constant {name!r} is defined twice")
        tensors[name] = tensor


def _string(data: Any) -> str:
    try:
        return bytes(data).decode("utf-8")
    except UnicodeDecodeError:
        return bytes(data).decode("latin-1")


def stored(fields: Mapping[str, Any]) -> StoredTensor:
    """Return the record of a tensor's fields."""
    return StoredTensor(
        fields.get("name", ""), tuple(fields.get("dims", ())), fields.get("data_type", 0), fields
    )


def _sparse(fields: Mapping[str, Any]) -> SparseTensor:
    return SparseTensor(
        stored(fields.get("values", {})),
        stored(fields.get("indices", {})),
        tuple(fields.get("dims", ())),
    )


def _port(fields: Mapping[str, Any]) -> Port:
    name, type_ = fields.get("name", ""), fields.get("type", {})
    for kind in ("sequence", "optional"):
        if kind in type_:
            return Port(name, kind, element=_port({"type": type_[kind].get("elem", {})}))
    if "tensor" not in type_:
        return Port(name, next((k for k in ("map", "sparse") if k in type_), "tensor"))
    tensor = type_["tensor"]
    dims = None
    if "shape" in tensor:
        dims = tuple(_dim(d) for d in tensor["shape"].get("dims", ()))
    return Port(name, "tensor", tensor.get("elem", 0), dims)


def _dim(fields: Mapping[str, Any]) -> int | str | None:
    value = fields.get("value")
    if value is not None and value >= 0:
        return value
    return fields.get("name") or None
