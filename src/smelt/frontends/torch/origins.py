"""Where a traced operator comes from: the user's line, the module's path, the ATen operator."""

from __future__ import annotations

import re
from functools import cache, lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

from smelt.origin import Origin

__all__ = ["Traced", "module_of", "origin_of"]

_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)(?:\n\s*(.*))?')
_ROOT = re.compile(r"[LG](?:\['|\.)(\w+)(?:'\])?(?:\.__self__\b)?")


class Traced(Origin):
    """The place of an operator that torch has traced; `line` is 0 where torch added it itself.

    >>> str(Traced(("model.py", 12, "forward", "y = x + b"), "layers.0", "aten.add.Tensor"))
    'model.py:12'
    """

    __slots__ = ("module", "operator")

    def __init__(self, place: tuple[str, int, str, str], module: str, operator: str) -> None:
        super().__init__(*place)
        self.module = module
        """Path in the model, as `layers.0.attention`; empty if unknown."""
        self.operator = operator
        """The overload, as `aten.add.Tensor`."""

    def answers(self, name: str) -> bool:
        """Whether it is of that operator, or in that module.

        >>> layer = Traced(("model.py", 12, "forward", "y = x + b"), "layers.0", "aten.add.Tensor")
        >>> [layer.answers(x) for x in ("add", "aten.add", "layers", "layers.0", "layer")]
        [True, True, True, True, False]
        """
        namespace, _, overload = self.operator.partition(".")
        operator = overload.partition(".")[0]
        forms = self.operator, overload, operator, f"{namespace}.{operator}"
        return name in forms or f"{self.module}.".startswith(f"{name}.")


def origin_of(node: Any) -> Traced:
    """The place that a traced operator comes from."""
    known = node.meta.get("smelt_origin")
    if known is None:
        place = _place(node.meta.get("stack_trace") or "")
        known = node.meta["smelt_origin"] = Traced(place, _path_of(node), str(node.target))
    return known


@lru_cache(maxsize=4096)
def _place(stack: str) -> tuple[str, int, str, str]:
    """File, line, function and text of the innermost frame outside of torch; many operators come
    from one line, which every layer runs."""
    frames = _FRAME.findall(stack)
    frames = [f for f in frames if not f[0].startswith(_package())] or frames
    file, line, function, text = frames[-1] if frames else ("<torch>", "0", "", "")
    return file, int(line), function, text.strip()


@cache
def _package() -> str:
    """Where torch's own code lies: the line that a user knows is one outside of it."""
    return str(Path(str(import_module("torch").__file__)).parent)


def _path_of(node: Any) -> str:
    return _innermost(tuple(_stack(node)), len(_roots(node.graph)) < 2)


@lru_cache(maxsize=4096)
def _innermost(stack: tuple[str, ...], alone: bool) -> str:
    """The path of the innermost of some modules that has one, where paths start from one root
    `alone`, or from several; operators of a module ask the same."""
    for root, path in map(_parted, reversed(stack)):
        found = path if alone or root == "self" else f"{root}{path}"
        found = re.sub(r"\['?([^'\]]+)'?\]", r".\1", found.replace("._modules", "")).strip(".")
        if found:
            return found
    return ""


def _stack(node: Any) -> list[str]:
    """The modules that an operator is in, the innermost last, as the tracer names them."""
    return [str(path) for path, _ in (node.meta.get("nn_module_stack") or {}).values()]


@lru_cache(maxsize=4096)
def _parted(path: str) -> tuple[str, str]:
    """The variable that a path starts from, and the rest.

    >>> _parted("L['fn'].0"), _parted("G['model'].__self__.layers.0"), _parted("layers.0")
    (('fn', '.0'), ('model', '.layers.0'), ('', 'layers.0'))
    """
    found = _ROOT.match(path)
    return (found[1], path[found.end() :]) if found else ("", path)


def _roots(graph: Any) -> frozenset[str]:
    """The variables that paths start from; of one nobody need say the name, which may be one of
    PyTorch's own (`fn`)."""
    first = next(iter(graph.nodes)).meta
    if "smelt_roots" not in first:
        first["smelt_roots"] = frozenset(_parted(p)[0] for n in graph.nodes for p in _stack(n))
    return first["smelt_roots"]


def module_of(node: Any) -> str:
    """Path and line, as far as they are known."""
    origin = origin_of(node)
    line = str(origin) if origin.known else ""
    return " ".join(part for part in (origin.module, line) if part)
