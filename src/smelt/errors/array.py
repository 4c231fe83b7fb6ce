"""E1xx: mistakes in array code, detected before anything runs: shapes, dtypes, axes, sizes."""

from __future__ import annotations

from typing import Any, Self

from smelt.errors.tree import SmeltError

BROADCAST_HINT = "Shapes are compared from the right; a dimension of 1 stretches: x[:, None], x.mT."
"""Hint for two shapes that do not broadcast."""
CONTRACTION_HINT = (
    "Products sum over these: they must be equal. `x.mT` swaps the last two dimensions."
)
"""Hint for two reduction dimensions that differ."""


class ShapeError(SmeltError, ValueError):
    """Shapes that do not fit together.

    What it means:
        The operator combines dimensions that must be equal (or 1, where the array API broadcasts),
        and they are not. Both shapes are named, with the dimension that disagrees.
    Why:
        Nothing has run yet: shapes are checked while the operator is recorded, so the line in the
        message is the line to change.
    Example:
        import smelt as sm

        sm.ones((3, 4)) + sm.ones((5,))
    How to fix:
        Compare the two shapes in the message from the right. Give one of them a dimension of 1
        with `x[:, None]`, transpose with `x.mT`, or reshape it.
    """

    code = "E101"
    title = "shape mismatch"
    template = "{op}({operands}): {reason}"
    hint = "The message shows each operand as dtype[shape]; print(x.shape) shows a shape."

    @classmethod
    def of(cls, op: str, reason: str, *operands: Any) -> Self:
        """Return the error of operands that say their type and shape, `type_text`."""
        return cls(op=op, operands=", ".join(x.type_text for x in operands), reason=reason)


class DTypeError(SmeltError, TypeError):
    """An element type that the operator does not take.

    What it means:
        The operator is not defined for these element types, or the array API's promotion rules
        give them no common type (an unsigned 64-bit and a signed integer, for instance).
    Why:
        Guessing a type would lose bits silently; the array API leaves such mixtures undefined.
    Example:
        import smelt as sm

        sm.bitwise_and(sm.ones(3), sm.ones(3))
    How to fix:
        Convert one operand yourself with `sm.astype(x, dtype)`.
    """

    code = "E102"
    title = "wrong element type"
    template = "{op} is not defined for {dtypes}"
    hint = "Convert an operand first: sm.astype(x, sm.float32)."


class AxisError(SmeltError, ValueError, IndexError):
    """An axis that the array does not have.

    What it means:
        An `axis` argument lies outside -ndim ... ndim-1, or the same axis is named twice.
    Why:
        Axes count from 0 and, from the end, from -1; a repeated axis has no meaning.
    Example:
        import smelt as sm

        sm.sum(sm.ones((3, 4)), axis=2)
    How to fix:
        Use one of the axes the message lists.
    """

    code = "E103"
    title = "no such axis"
    template = "{op}: axis {axis} of an array with {ndim} dimensions"
    hint = "Axes run from 0 to ndim - 1, or from -ndim to -1 counted from the end."


class IndexRangeError(SmeltError, IndexError):
    """An index or a slice that is outside of the array.

    What it means:
        An integer index is outside its dimension, there are more indices than dimensions, or a kind
        of index is used that the array API does not define.
    Why:
        Sizes and constant indices are known while recording, so the mistake is reported there.
    Example:
        import smelt as sm

        sm.ones((3, 4))[5]
    How to fix:
        Stay inside the dimension, or use a slice, which Python clips at the end.
    """

    code = "E104"
    title = "index out of range"
    template = "index {index} of a dimension of {size}"
    hint = "An index counts from 0 to size - 1, or from -size to -1."


class OutsideError(SmeltError, IndexError, RuntimeError):
    """An index in the data is outside of its axis when a compiled program runs.

    What it means:
        An index, a token or a label in the data is too large or negative, or there are more
        positions than rows of a table, as in a text that is longer than a model's maximum.
    Why:
        Kernels clamp every index, so nothing out of bounds was read, but the result would be
        wrong. NumPy and eager PyTorch raise an error too. Indices that are provably in bounds are
        not checked: `i % n`, `sm.clip(i, 0, n - 1)`, results of `argmax` and `argsort`.
    Example:
        import smelt as sm

        sm.jit(lambda x, i: x[i])(sm.ones(3), sm.asarray([0, 3]))
    How to fix:
        Check the smallest and the largest index that is passed to the operator in the message.
    """

    code = "E111"
    title = "a position outside"
    template = "{reader}: a position is outside of the axis that it counts along"
    hint = "Compare the index's least and greatest element with the size of the dimension."


class OverflowSizeError(SmeltError, OverflowError, ValueError):
    """A size that exceeds any memory.

    What it means:
        The number of bytes of an array, computed in exact integers, exceeds 2**63 - 1, or a
        dimension is negative.
    Why:
        Sizes that overflow are a classic cause of writes outside a buffer. One function computes
        every size and rejects overflow.
    Example:
        import smelt as sm

        sm.zeros((2**40, 2**40))
    How to fix:
        Look for a product of dimensions that was meant to be a sum, or an outer product where a
        contraction was meant.
    """

    code = "E105"
    title = "impossible size"
    template = "{what} needs {bytes} bytes, beyond 2**63 - 1"
    hint = "Check the shape in the message: a dimension is negative or far too large."


class UnsupportedError(SmeltError, NotImplementedError):
    """Something that Smelt does not do.

    What it means:
        The function, dtype or argument belongs to the array API or to NumPy but has no
        implementation here. Nothing has run, nothing has been changed.
    Why:
        A clear error is better than a slow or wrong answer. With `SMELT_STRICT=1` operators that
        would run outside the compiler (extern) raise this error too.
    Example:
        import smelt as sm

        sm.ones(3).resize(2)
    How to fix:
        Compute this part with NumPy, as in `sm.asarray(np.linalg.svd(np.asarray(x))[0])`, or unset
        `SMELT_STRICT` if the message names an extern operator.
    """

    code = "E106"
    title = "not supported"
    template = "{what}"
    hint = "Compute this part with NumPy: np.asarray(x) gives the values."


class ArgumentError(SmeltError, ValueError, TypeError):
    """An argument with a value the function cannot use.

    What it means:
        An argument other than an array is wrong: a step of zero, an unknown `mode`, a keyword that
        the function does not have, a number that is not finite where a finite one is needed.
    Why:
        Arguments are checked when the call is recorded, so that the line is yours.
    Example:
        import smelt as sm

        sm.arange(0, 10, 0)
    How to fix:
        The message names the argument and what it accepts.
    """

    code = "E107"
    title = "wrong argument"
    template = "{op}: {argument} = {value}, expected {expected}"
    hint = ""

    @classmethod
    def of(cls, op: str, argument: str, value: object, expected: str) -> Self:
        """Return the error of an argument that is shown as Python writes it."""
        return cls(op=op, argument=argument, value=repr(value), expected=expected)


class RangeError(ArgumentError, OverflowError):
    """A Python number is out of range for the array's type.

    What it means:
        A Python number takes the type of the array that it is combined with, as in NumPy. This one
        is out of range for that type, such as 300 with uint8 or 2**63 with int64.
    Why:
        Truncation would give a wrong number, and a wider result type would depend on a value. NumPy
        raises `OverflowError` here, and `except OverflowError` catches this error too.
    Example:
        import smelt as sm

        sm.arange(3) + 2**63
    How to fix:
        Convert the array to a type that holds both, with `sm.astype(x, sm.uint64)` or to a float.
    """

    code = "E110"
    title = "number out of range"
    template = "{op}: {argument} = {value}, expected {expected}"
    hint = "Convert the array to a wider type first, such as sm.astype(x, sm.float64)."


class UnknownNameError(SmeltError, LookupError):
    """A name that does not exist.

    What it means:
        An operator, a pass, a reason, an error code or a value was looked up by a name that does
        not exist.
    Why:
        Names are looked up in tables; the closest entry of the table is suggested.
    Example:
        import smelt as sm

        sm.errors.page("E1O1")
    How to fix:
        Use the suggested name, or list the table: `smelt ops`, `smelt errors`, `smelt opt --list`.
    """

    code = "E108"
    title = "unknown name"
    template = "no {kind} is called {name!r}{suggestion}"
    hint = ""


class GradientError(SmeltError, TypeError):
    """A function that cannot be differentiated as requested.

    What it means:
        `sm.grad` and related functions differentiate a real number with respect to float arrays.
        Here an argument has integers, the result is not a single float, an argument does not exist,
        or an operator between them (a library call) has no derivative.
    Why:
        A wrong gradient is silent. Zero would be one wherever the path from argument to result is
        not differentiable, so an error is raised.
    Example:
        import smelt as sm

        sm.grad(lambda x: x * 2)(sm.ones(3))
    How to fix:
        Sum or average the result to one number, convert integers with `sm.astype`, name the float
        arguments in `argnums=`, or wrap constant parts in `sm.stop_gradient`.
    """

    code = "E109"
    title = "no derivative"
    template = "{op}: {reason}"
    hint = "Differentiate one float by floats; sm.stop_gradient(x) makes a part constant."
