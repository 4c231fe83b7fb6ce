"""Where a traced operator comes from: the user's line, the module's path, the ATen operator."""

from __future__ import annotations

import re
from typing import Any

from smelt.origin import Origin

__all__ = ["Traced", "module_of", "origin_of"]

_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)(?:\n\s*(.*))?')
_OWN = re.compile(r"\bL\['self'\]|\bL\.self")


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
        frames = _FRAME.findall(node.meta.get("stack_trace") or "")
        file, line, function, text = frames[-1] if frames else ("<torch>", "0", "", "")
        place = file, int(line), function, text.strip()
        known = node.meta["smelt_origin"] = Traced(place, _path_of(node), str(node.target))
    return known


def _path_of(node: Any) -> str:
    stack = node.meta.get("nn_module_stack") or {}
    for path, _ in reversed(list(stack.values())):
        cleaned = _OWN.sub("", str(path)).replace("._modules", "")
        cleaned = re.sub(r"\['?([^'\]]+)'?\]", r".\1", cleaned).strip(".")
        if cleaned:
            return cleaned
    return ""


def module_of(node: Any) -> str:
    """Path and line, as far as they are known."""
    origin = origin_of(node)
    line = str(origin) if origin.known else ""
    return " ".join(part for part in (origin.module, line) if part)
