"""Find the user's line, the module's path and the ATen operator of a traced node."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache, lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

from smelt.python.origin import Origin
from smelt.python.source_names import assigned_in_line

_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)(?:\n\s*(.*))?')
_ROOT = re.compile(r"[LG](?:\['|\.)(\w+)(?:'\])?(?:\.__self__\b)?")


class TracedOrigin(Origin):
    """Origin of a traced operator; `line` is 0 if torch added it itself.

    >>> str(TracedOrigin(("model.py", 12, "forward", "y = x + b"), "layers.0", "aten.add.Tensor"))
    'model.py:12'
    """

    __slots__ = ("label", "module", "operator")

    def __init__(
        self,
        location: tuple[str, int, str, str],
        module: str,
        operator: str,
        label: str | None = None,
    ) -> None:
        super().__init__(*location)
        self.module = module
        """Path in the model, such as `layers.0.attention`; empty if unknown."""
        self.operator = operator
        """The overload, such as `aten.add.Tensor`."""
        self.label = label
        """Name of an argument; empty for a value that its line does not name."""

    @property
    def assigned(self) -> str:
        """Name of the module on this line, or of the variable that it assigns to.

        >>> line = "model.py", 12, "forward", "q = self.q_proj(x).view(b, n, 8, -1)"
        >>> TracedOrigin(line, "layers.0.q_proj", "aten.mm.default").assigned
        'q_proj'
        >>> TracedOrigin(line, "layers.0", "aten.view.default").assigned
        'q'
        """
        if self.label is not None:
            return self.label
        text, name = self.place.text, self.module.rpartition(".")[2]
        if f".{name}(" in text and not name.isdigit():
            return name
        return assigned_in_line(text)

    @property
    def called(self) -> tuple[str, ...]:
        """Names of the ATen operator; none for a value that its line does not name.

        >>> TracedOrigin(("model.py", 12, "forward", ""), "", "aten.add.Tensor").called
        ('add', 'aten.add', 'aten.add.Tensor')
        """
        namespace, _, overload = self.operator.partition(".")
        if self.label is not None or not overload:
            return ()
        operator = overload.partition(".")[0]
        return operator, f"{namespace}.{operator}", self.operator

    def matches_name(self, name: str) -> bool:
        """Whether a name means this operator, or a module around it.

        >>> layer = TracedOrigin(
        ...     ("model.py", 12, "forward", "y = x + b"), "layers.0", "aten.add.Tensor"
        ... )
        >>> [layer.matches_name(x) for x in ("add", "aten.add", "layers", "layers.0", "layer")]
        [True, True, True, True, False]
        """
        namespace, _, overload = self.operator.partition(".")
        operator = overload.partition(".")[0]
        forms = self.operator, overload, operator, f"{namespace}.{operator}"
        return name in forms or f"{self.module}.".startswith(f"{name}.")


def origin_of(node: Any) -> TracedOrigin:
    """Return the origin of a traced operator, cached at its node."""
    origin = node.meta.get("smelt_origin")
    if origin is None:
        frame = _innermost_frame(node.meta.get("stack_trace") or "")
        origin = node.meta["smelt_origin"] = TracedOrigin(
            frame, _module_path(node), str(node.target), _label(node)
        )
    return origin


def _label(node: Any) -> str | None:
    """Return an argument's name, "" for values that their line does not name.

    Those are gradients, which have the line of the operator they are of, and saved values.
    """
    if node.op == "placeholder":
        return node.meta.get("smelt_argument", "")
    return "" if node.meta.get("autograd_backward") else None


def argument_names(module: Any) -> list[str]:
    """Return the names of a traced module's arguments; those of parameters are their paths."""
    return [_argument_name(n) for n in module.graph.find_nodes(op="placeholder")]


def _argument_name(node: Any) -> str:
    """Return `hidden` for `L['hidden']`, `q_proj_weight` for a parameter; "" if unknown."""
    source = getattr(getattr(node.meta.get("grapharg"), "_example", None), "source", None)
    source = getattr(node.meta.get("grapharg"), "source", source)
    if source is None:
        return ""
    try:
        text = source.name() if callable(source.name) else source.name
    except (AttributeError, NotImplementedError):
        return ""
    root, path = _split_root(re.sub(r"\._(modules|parameters|buffers)\b", "", str(text)))
    name = "_".join(re.findall(r"\w+", path))
    return name if name.isidentifier() else f"{root}_{name}".strip("_")


def name_arguments(traced: Any, names: Sequence[str]) -> None:
    """Give the arguments of a graph of AOTAutograd's the names of those of Dynamo's graph."""
    for node in traced.graph.find_nodes(op="placeholder"):
        position = getattr(node.meta.get("desc"), "idx", None)
        plain = type(node.meta.get("desc")).__name__ in ("PlainAOTInput", "ParamAOTInput")
        if plain and isinstance(position, int) and position < len(names):
            node.meta["smelt_argument"] = names[position]


@lru_cache(maxsize=4096)
def _innermost_frame(stack: str) -> tuple[str, int, str, str]:
    """Return file, line, function and text of the innermost frame outside of torch.

    Cached, since many operators come from one line, which every layer runs.
    """
    frames = _FRAME.findall(stack)
    frames = [f for f in frames if not f[0].startswith(_torch_directory())] or frames
    file, line, function, text = frames[-1] if frames else ("<torch>", "0", "", "")
    return file, int(line), function, text.strip()


@cache
def _torch_directory() -> str:
    """Return the directory of torch's own code, whose frames are skipped."""
    return str(Path(str(import_module("torch").__file__)).parent)


def _module_path(node: Any) -> str:
    return _innermost_path(tuple(_module_stack(node)), len(_roots(node.graph)) < 2)


@lru_cache(maxsize=4096)
def _innermost_path(stack: tuple[str, ...], single_root: bool) -> str:
    """Return the path of the innermost of some modules that has one.

    `single_root` says that all paths start from one root, which is then left out. Cached, as all
    operators of a module need the same.
    """
    for root, path in map(_split_root, reversed(stack)):
        name = path if single_root or root == "self" else f"{root}{path}"
        name = re.sub(r"\['?([^'\]]+)'?\]", r".\1", name.replace("._modules", "")).strip(".")
        if name:
            return name
    return ""


def _module_stack(node: Any) -> list[str]:
    """Return the modules around an operator, the innermost last.

    Named as the tracer names them.
    """
    return [str(path) for path, _ in (node.meta.get("nn_module_stack") or {}).values()]


@lru_cache(maxsize=4096)
def _split_root(path: str) -> tuple[str, str]:
    """Split a path into the variable that it starts from and the rest.

    >>> (
    ...     _split_root("L['fn'].0"),
    ...     _split_root("G['model'].__self__.layers.0"),
    ...     _split_root("layers.0"),
    ... )
    (('fn', '.0'), ('model', '.layers.0'), ('', 'layers.0'))
    """
    match = _ROOT.match(path)
    return (match[1], path[match.end() :]) if match else ("", path)


def _roots(graph: Any) -> frozenset[str]:
    """Return the variables that module paths start from.

    A single root is left out of paths: it may be a name of PyTorch's own (`fn`).
    """
    first = next(iter(graph.nodes)).meta
    if "smelt_roots" not in first:
        first["smelt_roots"] = frozenset(
            _split_root(p)[0] for n in graph.nodes for p in _module_stack(n)
        )
    return first["smelt_roots"]


def module_of(node: Any) -> str:
    """Return module path and line, as far as they are known."""
    origin = origin_of(node)
    line = str(origin) if origin.known else ""
    return " ".join(part for part in (origin.module, line) if part)
