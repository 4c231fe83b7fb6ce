"""E3xx: memory that is missing, shared, donated, foreign or on the wrong device."""

from __future__ import annotations

from smelt.errors.tree import SmeltError


class OutOfMemory(SmeltError, MemoryError):
    """A plan needs more memory than there is, or than it may have.

    What it means:
        The arena of the plan and its outputs are known before it runs. They do not fit, or they
        exceed `SMELT_MAX_EXTRA_MEMORY`. The message has the sizes and the largest value.
    Why:
        An error before the work starts leaves the process alive and the inputs unchanged.
    Example:
        import smelt as sm

        with sm.config(max_extra_memory="1KiB"):
            sm.jit(lambda x: (sm.cumulative_sum(x), x + 1))(sm.ones(2**20))
    How to fix:
        Work on smaller batches, pass `out=` or `donate=` to reuse memory, or raise the limit.
    """

    code = "E301"
    title = "out of memory"
    template = "the plan needs {needed} beyond its inputs, {available} are available; {largest}"
    hint = "Use smaller batches, or pass out= or donate= so that memory is reused."


class AliasError(SmeltError, ValueError):
    """Two arguments share memory, so that the result would depend on execution order.

    What it means:
        `out=` overlaps an input (or another output) without being exactly the same array, or an
        input with overlapping elements is written to.
    Why:
        Parts of the result would overwrite inputs that other parts still have to read.
    Example:
        import numpy as np
        import smelt as sm

        buffer = np.zeros(10, np.float32)
        sm.jit(lambda x: sm.flip(x))(buffer[:8], out=buffer[2:])
    How to fix:
        Give `out=` memory of its own, or exactly the input's (`out=x`), or leave it out.
    """

    code = "E302"
    title = "overlapping memory"
    template = "{first} and {second} share {bytes} bytes"
    hint = "Pass out= with memory of its own, or exactly the array that is read."


class DonatedError(SmeltError, RuntimeError):
    """An array was used after it had been donated.

    What it means:
        `donate=` gave the array's memory to a call, which may have put its result there.
    Why:
        The old values are gone; reading them would give the new ones, silently.
    Example:
        import smelt as sm

        x = sm.asarray(sm.ones(8))
        sm.jit(lambda x: x + 1, donate=("x",))(x)
        x[0]
    How to fix:
        Use the result instead of the donated array, or do not donate it.
    """

    code = "E303"
    title = "array was donated"
    template = "{value} gave its memory away at {where}"
    hint = "Use the result of that call, or take the argument out of donate=."


class OutArgumentError(SmeltError, ValueError, TypeError):
    """An `out=` array that cannot take the result.

    What it means:
        Its shape or dtype differs from the result's, it is read-only, or it is not an array whose
        memory can be written in place.
    Why:
        `out=` never converts: it says where the result goes, and the result is what it is.
    Example:
        import numpy as np
        import smelt as sm

        sm.jit(lambda x: x + 1)(np.ones(3), out=np.zeros(4))
    How to fix:
        Allocate it with the result's shape and dtype, as the message gives them.
    """

    code = "E304"
    title = "unusable out="
    template = "the result is {expected}, out= is {found}"
    hint = "Allocate out= with exactly the shape and dtype of the result, writable."


class DLPackError(SmeltError, BufferError, ValueError):
    """A foreign array that cannot be read as it says it is.

    What it means:
        The DLPack capsule or array interface has a shape, stride, alignment, byte order or dtype
        that is invalid or not known here, or it could be taken only by a copy that `copy=False`
        forbids.
    Why:
        Everything a foreign library claims about memory is checked before a kernel touches it.
    Example:
        import numpy as np
        import smelt as sm

        sm.from_dlpack(np.ones(3), copy=False, device="nowhere")
    How to fix:
        Make the array contiguous and native in its own library, or allow the copy.
    """

    code = "E305"
    title = "unusable foreign array"
    template = "{what}: {reason}"
    hint = "Make it contiguous and of native byte order in its own library, or allow a copy."


class DeviceError(SmeltError, ValueError, RuntimeError):
    """A device that does not exist or does not match.

    What it means:
        The device is unknown, is not present, or the operands of one operator live on different
        ones.
    Why:
        Moving data between devices costs more than most kernels: it never happens implicitly.
    Example:
        import smelt as sm

        sm.ones(3, device="abacus")
    How to fix:
        Use one of the devices the message lists; move arrays with `x.to_device(...)`.
    """

    code = "E306"
    title = "wrong device"
    template = "{device!r}; here: {known}"
    hint = "Move the array with x.to_device(...)."


class ChangedError(SmeltError, RuntimeError):
    """An array changed, or was released, while a result that reads it was pending.

    What it means:
        Arrays made outside `sm.jit` are computed when they are read. Foreign memory that one of
        them still had to read was resized, released or written in between. Or a function wrote,
        while `sm.jit` recorded it, to a NumPy array that an operator before had read.
    Why:
        The result would depend on when it is computed; a compiled function reads NumPy's memory
        when it runs, after all of its Python code.
    Example:
        import numpy as np
        import smelt as sm

        source = np.ones(1000)
        pending = sm.asarray(source) + 1
        source.resize((0,), refcheck=False)
        np.asarray(pending)
    How to fix:
        Read the result first (`np.asarray(y)`), or give Smelt its own copy with `copy=True`.
    """

    code = "E307"
    title = "input changed while pending"
    template = "{value} was {what} before {reader} had read it"
    hint = "Read the pending result first, or hand the input over with copy=True."
