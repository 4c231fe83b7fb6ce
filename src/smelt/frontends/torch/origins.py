"""Where a traced operator comes from: the user's line, and the module's path in the model."""

from __future__ import annotations

import re
from typing import Any

from smelt.origin import Origin

__all__ = ["module_of", "origin_of"]

_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)(?:\n\s*(.*))?')


def origin_of(node: Any) -> Origin | None:
    """The line of the user's program; None for operators that torch has added."""
    known = node.meta.get("smelt_origin", node)
    if known is not node:
        return known
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    found = None
    if frames:
        file, line, function, text = frames[-1]
        found = Origin(file, int(line), function, text.strip())
    node.meta["smelt_origin"] = found
    return found


def path_of(node: Any) -> str:
    """The module's path in the model, as `layers.0.attention`; empty if unknown."""
    stack = node.meta.get("nn_module_stack") or {}
    for path, _ in reversed(list(stack.values())):
        cleaned = re.sub(r"\['?([^'\]]+)'?\]", r".\1", path.replace("L.self", "", 1)
                         .replace("L['self']", "", 1))  # fmt: skip
        cleaned = cleaned.replace("_modules.", "").strip(".")
        if cleaned:
            return cleaned
    return ""


def module_of(node: Any) -> str:
    """Path and line, as far as they are known."""
    origin = origin_of(node)
    line = f"{origin.file}:{origin.line}" if origin is not None else ""
    return " ".join(part for part in (path_of(node), line) if part)
