"""E2xx: errors of `sm.jit`: values needed too early, arguments, guards, structures."""

from __future__ import annotations

from smelt.errors.tree import SmeltError


class TracerError(SmeltError, TypeError):
    """A value was needed while the function was being recorded.

    What it means:
        Inside `sm.jit` an array stands for all arrays of its type: it has a dtype and a shape but
        no values yet. `if x > 0`, `float(x)`, `np.asarray(x)` and `for v in x` need the values.
    Why:
        A branch on a value would compile the path of the first call and use it for all others.
    Example:
        import smelt as sm

        @sm.jit
        def f(x):
            return x if x > 0 else -x

        f(sm.asarray(1.0))
    How to fix:
        Use `sm.where(x > 0, x, -x)`, or `sm.cond`, `sm.scan` and `sm.while_loop` for branches and
        loops; make the argument static (`static_argnames=`), or move the test out of the function.
        Sizes are fine: `if x.shape[0] > 4` becomes a guard.
    """

    code = "E201"
    title = "value needed while recording"
    template = "{use} needs the values of {value}, which has none inside sm.jit"
    hint = "Use sm.where or sm.cond to choose by value, static_argnames for a fixed argument."


class StaticArgError(SmeltError, TypeError, ValueError):
    """A static argument that cannot be one.

    What it means:
        An argument named in `static_argnames` is not hashable, does not exist, or is an array; or
        an argument is of a type that is neither an array nor declared static.
    Why:
        The value of a static argument is part of the key under which the compiled function is
        found, so it must be hashable and must not change.
    Example:
        import smelt as sm

        @sm.jit(static_argnames=("order",))
        def f(x, order):
            return x

        f(sm.ones(3), order=[0, 1])
    How to fix:
        Pass a tuple instead of a list, a frozen dataclass instead of a dict; pass arrays as normal
        arguments.
    """

    code = "E202"
    title = "unusable static argument"
    template = "{argument} of type {type}: {reason}"
    hint = "Static arguments are hashed: pass a tuple, not a list; arrays are never static."


class GuardError(SmeltError, ValueError):
    """An ahead-of-time compiled function was called outside what it was compiled for.

    What it means:
        `sm.jit(f).lower(...).compile()` fixes ranks, dtypes and the guards that Python code put on
        sizes (`if n > 4`). The call breaks one of them; the message names it with its line.
    Why:
        `sm.jit(f)(...)` would compile another version. An ahead-of-time executable promises never
        to compile, so it refuses.
    Example:
        import smelt as sm

        compiled = sm.jit(lambda x: x + 1).lower(sm.spec("f32[n]")).compile()
        compiled(sm.ones((3, 4)))
    How to fix:
        Call `sm.jit(f)` itself, or lower it once more for these arguments.
    """

    code = "E203"
    title = "guard failed"
    template = "{guard} does not hold: {found}"
    hint = "Call sm.jit(f) itself, which compiles another version when it must."


class StructureError(SmeltError, TypeError, ValueError):
    """A nested structure of arguments or results that is not supported.

    What it means:
        A leaf of the arguments or the result is neither an array nor a number (a set, a generator,
        an object that is not registered), or `out=` is nested differently from the result.
    Why:
        Tuples, lists, dicts, named tuples and dataclasses are flattened and restored; other
        containers have no reliable order.
    Example:
        import smelt as sm

        sm.jit(lambda x: {x})(sm.ones(3))
    How to fix:
        Return arrays in tuples, lists, dicts or dataclasses.
    """

    code = "E204"
    title = "unknown structure"
    template = "{where}: {type} is neither an array nor a container of arrays"
    hint = "Arrays may be nested in tuples, lists, dicts and dataclasses."


class LeakError(SmeltError, RuntimeError):
    """A value of one recording was used in another.

    What it means:
        An array made while `sm.jit` recorded a function was stored outside (in a global, an
        attribute, a list) and used after the recording had ended.
    Why:
        It stands for a value of that recording only and has no meaning outside.
    Example:
        import smelt as sm

        kept = []
        sm.jit(lambda x: kept.append(x) or x)(sm.ones(3))
        kept[0] + 1
    How to fix:
        Return the array from the function instead of storing it.
    """

    code = "E205"
    title = "value outlived its recording"
    template = "{value} belongs to the recording of {function}, which has ended"
    hint = "Return the array from the function instead of storing it elsewhere."


class CarryError(SmeltError, TypeError, ValueError):
    """A step of a loop returns other carried values than it was given.

    What it means:
        The step of `sm.scan`, `sm.fori_loop` or `sm.while_loop` is recorded once and runs again on
        its own results: these must have the nesting, shapes and dtypes of what it takes. The
        branches of `sm.cond` must agree in the same way.
    Why:
        A carry that grows or changes its dtype would need another program in every step.
    Example:
        import smelt as sm

        c0 = sm.zeros(3, dtype=sm.float32)
        sm.scan(lambda c, x: (c + x, None), c0, sm.ones((5, 3)))
    How to fix:
        Convert the new carry with `sm.astype(c, c0.dtype)`, or start from the shape and the dtype
        that the steps return.
    """

    code = "E206"
    title = "a carry changes its type"
    template = "{op}: {value} is {found}, not {expected}"
    hint = "A step returns the carry with the nesting, shapes and dtypes that it got."


class LengthError(SmeltError, ValueError):
    """A loop whose number of steps is not clear.

    What it means:
        The arrays that `sm.scan` takes slices of, and `length` if it is given, say how many steps
        there are. They differ, or nothing says it.
    Why:
        Every step takes one slice of each array; a shorter one would end early.
    Example:
        import smelt as sm

        sm.scan(lambda c, xy: (c + xy[0], xy[1]), 0.0, (sm.ones(3), sm.ones(4)))
    How to fix:
        Cut the arrays to one length, or pass `length=` where there are none. For a number of steps
        that is computed, use `sm.fori_loop` or `sm.while_loop`.
    """

    code = "E207"
    title = "number of steps unclear"
    template = "{op}: {reason}"
    hint = "All sequences have one length, that of their first dimension."
