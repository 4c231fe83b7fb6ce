"""E81x: programs as files: damage, versions, machines, trust, and what cannot be saved."""

from __future__ import annotations

from smelt.errors.tree import SmeltError


class ProgramFileError(SmeltError, ValueError):
    """A program file is damaged, or is not a program file.

    What it means:
        A length, an offset or a checksum in the file does not agree with its bytes.
    Why:
        A file that was cut off or changed would otherwise run wrong code.
    Example:
        from smelt.errors import ProgramFileError

        raise ProgramFileError(path="f.smelt", reason="it ends after 40 of 64 bytes")
    How to fix:
        Copy the file again, or save the program again with `sm.save`.
    """

    code = "E811"
    title = "unreadable program file"
    template = "{path}: {reason}"
    hint = "Copy the file again, or write it again with sm.save."


class ProgramVersionError(SmeltError, ValueError):
    """A program file was written by a version of Smelt that is not supported.

    What it means:
        The file's format is newer, or its machine code calls another run time.
    Why:
        Machine code and the run time that calls it agree on the layout of their tables.
    Example:
        from smelt.errors import ProgramVersionError

        raise ProgramVersionError(path="f.smelt", reason="format 9, this version reads 1")
    How to fix:
        Save the program again with this version, or install the version that wrote it. Where LLVM
        is installed, `sm.load(path, compile=True)` compiles the stored graph.
    """

    code = "E812"
    title = "program file of another version"
    template = "{path}: {reason}"
    hint = "Save it again with this version; sm.load(path, compile=True) compiles its graph."


class ProgramMachineError(SmeltError, RuntimeError):
    """A program file has no code for this processor.

    What it means:
        Every instruction set in the file has instructions that the processor lacks.
    Why:
        Such code would stop the process with an illegal instruction.
    Example:
        from smelt.errors import ProgramMachineError

        raise ProgramMachineError(path="f.smelt", sets="avx512", reason="no avx512f")
    How to fix:
        Save with more sets: `sm.save(f, path, x, isa=("avx512", "avx2", "portable"))`. Where LLVM
        is installed, `sm.load(path, compile=True)` compiles the stored graph.
    """

    code = "E813"
    title = "no code for this processor"
    template = "{path} has code for {sets}: {reason}"
    hint = 'Save with more instruction sets, isa=("avx2", "portable"), or load with compile=True.'


class ProgramTrustError(SmeltError, PermissionError):
    """A program file may not be run, since others may have written it.

    What it means:
        The file belongs to another user, or other users may write to it.
    Why:
        A program file holds machine code: it is as trusted as a package that is installed.
    Example:
        from smelt.errors import ProgramTrustError

        raise ProgramTrustError(path="f.smelt", reason="other users may write to it (mode 0666)")
    How to fix:
        Make it yours (`chmod 644`), pass its digest (`sha256=`), or compile its graph, which runs
        nothing of the file: `trust="graph"`.
    """

    code = "E814"
    title = "program file not trusted"
    template = "{path}: {reason}"
    hint = 'Run chmod 644 on it, pass its digest as sha256=, or load with trust="graph".'


class SaveError(SmeltError, ValueError):
    """A program cannot be saved.

    What it means:
        A part of the program has no form in a file.
    Why:
        A file holds a graph, machine code and constants; code in Python stays where it is.
    Example:
        from smelt.errors import SaveError

        raise SaveError(what="an argument of type Path")
    How to fix:
        Make the part an argument, a result, or an operator of Smelt.
    """

    code = "E815"
    title = "program cannot be saved"
    template = "{what} has no form in a file"
    hint = "Pass it as an argument, or compute it outside of the program."


class LibraryError(SmeltError, ValueError):
    """A program cannot become a library for C.

    What it means:
        NumPy computes a part of the program, or C has no arguments of its kind.
    Why:
        A library has machine code, and a run time that does nothing but call it.
    Example:
        from smelt.errors import LibraryError

        raise LibraryError(name="f", part="operators that NumPy computes")
    How to fix:
        Write the part with operators that have kernels (`sm.explain` names those that have none),
        or compute it outside of the program.
    """

    code = "E816"
    title = "program cannot be a library"
    template = "{name} has {part}, which a library cannot have"
    hint = "Write that part with operators that have kernels, or compute it before or after."
