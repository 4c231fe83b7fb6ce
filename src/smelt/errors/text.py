"""E4xx: parse errors of the text forms, and verifier errors."""

from __future__ import annotations

from smelt.errors.tree import SmeltError
from smelt.python.origin import UNKNOWN, Origin

SHOWN = 160
"""Maximum characters of a line in a message, around the position."""


class TextError(SmeltError, ValueError):
    """Text that does not parse; the message has a caret under the position.

    What it means:
        The root of `GraphTextError`, `PlanTextError`, `KernelTextError`, `LoopTextError` and
        `ExprTextError`.
    Why:
        Every representation prints and parses back; an edited text may have mistakes.
    Example:
        from smelt.errors import TextError

        raise TextError("expected a name", source="graph (x", line=1, column=7)
    How to fix:
        Change the text at the caret.
    """

    code = "E400"
    title = "unreadable text"
    template = "{expected} expected, found {found}"

    def __init__(
        self,
        detail: str = "",
        /,
        *,
        source: str = "",
        line: int = 0,
        column: int = 0,
        length: int = 1,
        origin: Origin | None = None,
        hint: str | None = None,
        **fields: object,
    ) -> None:
        """Create an error at `line` and `column` of `source`, both from 1.

        `length` characters are underlined.
        """
        super().__init__(detail, origin=origin or UNKNOWN, hint=hint, **fields)
        self.source, self.line, self.column, self.length = source, line, column, length

    @staticmethod
    def position(source: str, offset: int) -> dict[str, int]:
        r"""Return line and column of a character, as keywords for the constructor.

        >>> TextError.position("graph f\n  return", 10)
        {'line': 2, 'column': 3}
        """
        start = source.rfind("\n", 0, offset) + 1
        return {"line": source.count("\n", 0, offset) + 1, "column": offset - start + 1}

    def where(self) -> list[str]:
        if not self.line:
            return super().where()
        lines = self.source.split("\n")
        text = lines[self.line - 1] if self.line <= len(lines) else ""
        lead = f"  at line {self.line}, column {self.column}:  "
        first = max(self.column - 1 - SHOWN // 2, 0) if len(text) > SHOWN else 0
        part = "".join(map(_visible, text[first : first + SHOWN]))
        shown = part.lstrip()
        before = max(self.column - 1 - first - (len(part) - len(shown)), 0)
        length = min(max(self.length, 1), max(len(shown) - before, 1))
        return [f"{lead}{shown}".rstrip(), " " * (len(lead) + before) + "^" * length]


def _visible(c: str) -> str:
    """Return a one-column replacement of a character for a message."""
    return c if c.isprintable() else " " if c.isspace() else "?"


class GraphTextError(TextError):
    """The text of a graph does not parse.

    What it means:
        A line is not of the form `v1 = add(x, v0) : f32[n]`, or names a value or an operator that
        does not exist.
    Why:
        `smelt opt`, golden tests and bug reports read graphs as text.
    Example:
        from smelt.graph.text import parse

        parse("graph f(x: f32[4]) { v0 = exp(x : f32[4] return v0 }")
    How to fix:
        Change the text at the caret; `smelt ops` lists the operators.
    """

    code = "E401"
    title = "unreadable graph"
    hint = "`smelt ops` lists the operators; the printed form of any graph is an example."


class KernelTextError(TextError):
    """The text of a kernel does not parse.

    What it means:
        A line is not a statement of the kernel language, or uses a value before it is defined.
    Why:
        Kernels are printed to be read and parse back to themselves.
    Example:
        from smelt.kernel.text import parse

        parse("kernel k(x: f32[n) -> y: f32[n]")
    How to fix:
        Change the text at the caret; the printed form of any kernel is an example.
    """

    code = "E402"
    title = "unreadable kernel"
    hint = "Print a kernel with sm.explain(f, *args).kernels[0].text for an example of the form."


class PlanTextError(TextError):
    """The text of a plan does not parse.

    What it means:
        A line is not a cluster, a buffer or a decision, or it names a value the graph lacks.
    Why:
        Plans are stored as text with the code that was compiled for them.
    Example:
        from smelt.fusion.text import parse

        parse("plan f for { k0(")
    How to fix:
        Change the text at the caret.
    """

    code = "E403"
    title = "unreadable plan"
    hint = "Print a plan with sm.jit(f).lower(...).as_text('plan') for an example of the form."


class ExprTextError(TextError):
    """An index expression, a type or a shape does not parse.

    What it means:
        Only integers, names, `+ - * // %`, `min` and `max` make an index expression; a type reads
        `f32[n, 4]`.
    Why:
        Sizes are exact integers: division is `//`, and there are no functions to call.
    Example:
        import smelt as sm

        sm.spec("f32[n/2]")
    How to fix:
        Change the text at the caret.
    """

    code = "E404"
    title = "unreadable expression"
    hint = "Types read f32[n, 4]; sizes use integers, names, + - * // %, min and max."


class LoopTextError(TextError):
    """The text of loops does not parse.

    What it means:
        A line is not a statement of the loop language, or reads a name before it is bound.
    Why:
        The loops of a kernel are printed to be read and parse back to themselves.
    Example:
        from smelt.loop.text import parse

        parse("func f(x: f32[n]; n)\\n  each i in 0 .. n\\n    y = x[j]")
    How to fix:
        Change the text at the caret; `docs/loop.md` explains the language by example.
    """

    code = "E407"
    title = "unreadable loops"
    hint = "Compare the line with the examples on the page `The loop language`."


class LoopPassError(SmeltError, ValueError):
    """A pass over loops may not do what it was asked to.

    What it means:
        A loop lacks a property that the pass needs, for example independent iterations.
    Why:
        Passes check what they may do, so that loops stay right whatever a schedule asks for.
    Example:
        from smelt.loop.passes.vectorize import vectorize
        from smelt.loop.text import parse

        text = "func f(x: out f32[n]; n)\\n  for i in 0 .. n\\n    x[i] = 1.0"
        vectorize(parse(text).funcs[0], "i", 16, "mask")
    How to fix:
        Choose another loop, or another pass first. Schedules that the compiler chooses are legal:
        if you did not call the pass yourself this is a bug in Smelt.
    """

    code = "E408"
    title = "loops cannot be transformed"
    hint = "Choose another loop, or apply another pass first."


class VerifyError(SmeltError, AssertionError):
    """A representation breaks one of its own rules.

    What it means:
        A verifier found a graph, a plan or a kernel that is not well formed: a type that does not
        follow, a value used before its definition, a store that two tasks could both do.
    Why:
        A pass of Smelt or a hand-written text has a mistake, which is better found here than as
        wrong numbers.
    Example:
        from smelt.graph.text import parse
        from smelt.graph.verify import verify

        verify(parse("graph f(x: f32[4]) {\\n  v0 = exp(x) : f32[5]\\n  return v0\\n}"))
    How to fix:
        If you did not write the text yourself this is a bug in Smelt: please report the message,
        which contains the text to replay.
    """

    code = "E405"
    title = "not well formed"
    template = "{what}: {reason}\n{context}"
    hint = "Unless you wrote this text yourself, it is a bug in Smelt: please report it."


class BoundsError(SmeltError, IndexError):
    """A kernel would read or write outside a buffer.

    What it means:
        The verifier could not prove an index inside its buffer, or the interpreter (or native code
        with `SMELT_BOUNDS_CHECK=1`) met one outside.
    Why:
        Every load and store is proven to be in bounds from the ranges of the axes, or masked;
        otherwise the kernel is rejected.
    Example:
        import smelt as sm

        with sm.config(bounds_check=True):
            sm.take(sm.ones(3), sm.asarray([7])).sum()
    How to fix:
        With integer-array indexing, check the indices: they are data and cannot be proven. In any
        other case it is a bug in Smelt: please report the message.
    """

    code = "E406"
    title = "outside the buffer"
    template = "{access}: index {index} of {buffer} with {size} elements"
    hint = "Check integer-array indices; anything else is a bug in Smelt, please report it."
