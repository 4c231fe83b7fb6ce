"""E5xx, E6xx, E9xx and warnings: back ends, machine, settings, cache, internal errors."""

from __future__ import annotations

from smelt.errors.tree import SmeltError, SmeltWarning


class CodegenError(SmeltError, RuntimeError):
    """Code generation failed for a kernel.

    What it means:
        LLVM rejected the code, or an operator of the kernel is not implemented for this target.
    Why:
        This should not happen: the kernel was verified before.
    Example:
        from smelt.errors import CodegenError

        raise CodegenError(kernel="k0", target="portable", reason="no spelling for this operator")
    How to fix:
        Report the message. `SMELT_FUSE=off` or `SMELT_TARGET=portable` may get you past it.
    """

    code = "E501"
    title = "code generation failed"
    template = "kernel {kernel} for {target}: {reason}"
    hint = "Please report this. SMELT_TARGET=portable or SMELT_FUSE=off may get you past it."


class ExternError(SmeltError, RuntimeError):
    """An operator that runs outside the compiler failed.

    What it means:
        Sorting, linear algebra or another library call raised, or returned an array of another type
        than it had announced. The library's own exception is the cause of this one.
    Why:
        The type of the result was already used to plan the rest.
    Example:
        from smelt.errors import ExternError

        raise ExternError(op="linalg.inv", reason="singular matrix")
    How to fix:
        Look at the exception this one was raised from.
    """

    code = "E502"
    title = "extern operator failed"
    template = "{op}: {reason}"
    hint = "The exception this one was raised from is the library's own."


class TargetError(SmeltError, ValueError):
    """A target that this machine does not offer.

    What it means:
        `SMELT_TARGET` or a target's text names instructions the processor lacks.
    Why:
        Code for them would stop the process with an illegal instruction.
    Example:
        from smelt.errors import TargetError

        raise TargetError(target="avx512", reason="this processor has no avx512f")
    How to fix:
        Use `auto`, or one of the targets `smelt doctor` lists.
    """

    code = "E503"
    title = "unusable target"
    template = "{target}: {reason}"
    hint = "`smelt doctor` lists what this processor has; SMELT_TARGET=auto takes the best."


class KnobError(SmeltError, ValueError, TypeError):
    """A setting that does not exist, or a value it does not take.

    What it means:
        `sm.config(...)`, an option or a `SMELT_*` environment variable has an unknown name or a
        value of the wrong type or outside the allowed range.
    Why:
        A misspelt setting that is silently ignored is hard to find.
    Example:
        import smelt as sm

        sm.config(thread=2)
    How to fix:
        Use the name the message suggests; `smelt doctor --knobs` prints them all.
    """

    code = "E601"
    title = "wrong setting"
    template = "{name}: {reason}"
    hint = "`smelt doctor --knobs` prints every setting with its values."


class FusionError(SmeltError, RuntimeError):
    """Operators that must share a kernel cannot.

    What it means:
        `sm.fuse(must=...)` or `SMELT_REQUIRE_FUSED` names operators, or the whole program, that the
        plan has in several kernels. The message has the reason with its code and numbers.
    Why:
        A program that requires one kernel should fail rather than run slower.
    Example:
        import numpy as np
        import smelt as sm

        sm.jit(lambda x: sm.sort(sm.exp(x)) + 1, must=True)(np.ones((8, 8)))
    How to fix:
        `smelt why` with the code explains the reason; `sm.explain` without the demand shows the
        plan.
    """

    code = "E504"
    title = "not one kernel"
    template = "{a} and {b} stay in separate kernels: {sentence} ({reason})"
    hint = "`sm.explain` without this requirement shows the plan; `smelt why` explains the reason."


class UnsupportedSystemError(SmeltError, ImportError):
    """The operating system lacks functions that Smelt is built on.

    What it means:
        `import smelt` failed. Your program is not at fault, and no setting helps.
    Why:
        Threads and memory are managed by functions of the C library: POSIX threads, `mmap`. Windows
        and interpreters inside of browsers do not have them.
    Example:
        from smelt.errors import UnsupportedSystemError

        raise UnsupportedSystemError(system="win32", missing="pthread_create in the C library")
    How to fix:
        Use Linux on x86-64: on Windows inside WSL 2, elsewhere in a container. docs/limits.md says
        which systems are tested.
    """

    code = "E507"
    title = "system not supported"
    template = "the system {system} lacks {missing}"
    hint = "Use Linux on x86-64: WSL 2 on Windows, a container elsewhere."


class MissingCompilerError(SmeltError, ImportError):
    """The package llvmlite, which compiles, is not installed.

    What it means:
        Something has to be compiled. Programs from files run without it, as they were saved.
    Why:
        llvmlite is most of an installation's size, so an image that runs saved programs leaves it
        out.
    Example:
        from smelt.errors import MissingCompilerError

        raise MissingCompilerError(package="llvmlite")
    How to fix:
        Install llvmlite; or save the program where it is installed, and load it: docs/files.md.
    """

    code = "E508"
    title = "no compiler"
    template = "compiling takes {package}, which is not installed"
    hint = "Install it. A program from a file runs without it: see sm.save and sm.load."


class DeviceKernelError(SmeltError, NotImplementedError):
    """A kernel needs something that the printer of GPU programs does not do.

    What it means:
        There is no Triton source for this kernel; the message names what is missing. The CPU's code
        is not affected.
    Why:
        A tensor of Triton has at most 2^20 elements, and not every axis can be visited in blocks.
        An error is better than a program that computes something else.
    Example:
        from smelt.errors import DeviceKernelError

        raise DeviceKernelError(kernel="k0", missing="all 4000000 elements of a row at once")
    How to fix:
        Run the kernel on the CPU. docs/gpu.md lists what prints.
    """

    code = "E505"
    title = "no GPU program for this kernel"
    template = "kernel {kernel} needs {missing}"
    hint = "docs/gpu.md lists what prints; the CPU runs this kernel."


class DeviceCompileError(SmeltError, RuntimeError):
    """The compiler of GPU programs failed.

    What it means:
        Triton refused a printed program, its process ended, or it gave no answer in time.
    Why:
        Triton compiles in a process of its own, so that its failure is an error and no crash.
    Example:
        from smelt.errors import DeviceCompileError

        raise DeviceCompileError(kernel="k0", arch="sm_90", reason="no answer within 120 s")
    How to fix:
        Report the message. The CPU runs the same kernel.
    """

    code = "E506"
    title = "GPU compiler failed"
    template = "{kernel} for {arch}: {reason}"
    hint = "Please report this with the kernel's source; the CPU runs this kernel."


class CacheError(SmeltError, OSError):
    """A cache command failed.

    What it means:
        An export, import or clear failed: a file of another machine, a damaged archive, a directory
        that is not yours.
    Why:
        While compiling, an unusable cache costs time and gives a `CacheWarning`; an explicit
        command must report its failure.
    Example:
        from smelt.errors import CacheError

        raise CacheError(path="/var/empty", reason="owned by another user")
    How to fix:
        The message names the path; `smelt cache info` shows the state of the cache in use.
    """

    code = "E602"
    title = "cache command failed"
    template = "{path}: {reason}"
    hint = "`smelt cache info` shows the cache in use and who owns it."


class InternalError(SmeltError, RuntimeError):
    """A bug in Smelt.

    What it means:
        Something that cannot happen did. Your program is not at fault.
    Why:
        It is reported as a bug, so that it can be distinguished from a mistake in array code.
    Example:
        from smelt.errors import InternalError

        raise InternalError("a cluster has no output")
    How to fix:
        Please report the message with the output of `smelt doctor`. `SMELT_FUSE=off` often gets
        you past it.
    """

    code = "E901"
    title = "bug in Smelt"
    template = "{what}"
    hint = "Please report this with the output of `smelt doctor`; SMELT_FUSE=off may get past it."


class CacheWarning(SmeltWarning):
    """The cache on disk is not used, or an entry was thrown away.

    What it means:
        The directory is not yours, others may write to it, it is read-only or full, or an entry
        was damaged. Results are right; compiling takes place again in the next process.
    Why:
        Object code is trusted only from a directory that nobody else can write to, and only after
        its checksum has been verified.
    Example:
        import warnings
        from smelt.errors import CacheWarning

        warnings.warn(CacheWarning(path="/tmp/shared", reason="other users may write to it"))
    How to fix:
        `chmod 700` the directory the message names, or choose another with `SMELT_CACHE_DIR`.
    """

    code = "W601"
    title = "cache not used"
    template = "{path}: {reason}"
    hint = "Choose a private directory with SMELT_CACHE_DIR, or silence this with SMELT_CACHE=off."


class FallbackWarning(SmeltWarning):
    """A graph, or an operator of one, is not compiled and runs slower.

    What it means:
        Results are right. What the message names is as slow as without compiling; the rest is
        compiled. Behind `torch.compile` it runs eagerly; in array code each operator gets a kernel
        of its own; if nothing can be compiled for the sizes of a later call, NumPy computes it.
    Why:
        Smelt failed to compile a case that it should handle. An operator that Smelt does not
        implement is different: it is called through torch without a warning.
    Example:
        import warnings
        from smelt.errors import FallbackWarning

        warnings.warn(FallbackWarning(graph="graph 0", reason="no argument determines the size n0"))
    How to fix:
        Please report the message with the output of `smelt doctor`. `SMELT_STRICT=on` raises the
        error instead, with its full traceback.
    """

    code = "W604"
    title = "not compiled"
    template = "{graph} was not compiled: {reason}"
    hint = "Please report this with the output of `smelt doctor`; SMELT_STRICT=on raises instead."


class KnobWarning(SmeltWarning):
    """An environment variable begins with `SMELT_` but is not a setting.

    What it means:
        The variable has no effect. The closest setting is suggested.
    Why:
        It is a warning, not an error: the variable may belong to another version or tool.
    Example:
        import warnings
        from smelt.errors import KnobWarning

        warnings.warn(KnobWarning(name="SMELT_THREDS", suggestion="SMELT_THREADS"))
    How to fix:
        Correct the name or unset the variable; `smelt doctor --knobs` prints all settings.
    """

    code = "W602"
    title = "unknown variable"
    template = "{name} is not a setting; did you mean {suggestion}?"
    hint = "`smelt doctor --knobs` prints every setting."


class SteeringWarning(SmeltWarning):
    """`sm.fuse` was entered inside a function that `jit` records, and has no effect.

    What it means:
        The block has no effect: a function is recorded completely, and planned afterwards.
    Why:
        Settings apply where a program is planned, which is where the function is called.
    Example:
        import warnings
        from smelt.errors import SteeringWarning

        warnings.warn(SteeringWarning(settings="never_fuse"))
    How to fix:
        Pass it to `jit`: `@sm.jit(never="exp+sum")`. Or call the function inside the block.
    """

    code = "W605"
    title = "fusion steered while recording"
    template = "sm.fuse inside a function that jit records has no effect ({settings})"
    hint = "Give it to jit, `@sm.jit(must=..., never=...)`, or call the function inside the block."


class ProbeWarning(SmeltWarning):
    """The machine could not be measured; built-in constants are used.

    What it means:
        Bandwidth and compute speed were not measured, or the measurement was not plausible.
        Plans are still right, their predicted times may be off.
    Why:
        The machine is very busy, or memory for the measurement was refused.
    Example:
        import warnings
        from smelt.errors import ProbeWarning

        warnings.warn(ProbeWarning(reason="the machine is too busy to measure"))
    How to fix:
        Run `smelt doctor --probe` on a quiet machine, or set `SMELT_PROBE=off`.
    """

    code = "W603"
    title = "machine not measured"
    template = "{reason}"
    hint = "Run `smelt doctor --probe` on a quiet machine; SMELT_PROBE=off silences this."
