"""Make a shared library with a C header of the programs in a file: no Python, no toolchain.

    sm.save(f, "f.smelt", sm.spec("f32[n,384]"))
    sm.save_library("f.smelt", "libf.so")              # and f.h beside it

The library has the file's machine code, the run time (`runtime/c`), tables of what Python knows of
each program (`smelt.saved.library_tables`) and the constants that kernels read, mapped as they are.
It imports a few functions of the C library and nothing else. Programs with a part that NumPy
computes are refused.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from smelt.errors import ArgumentError, ProgramMachineError
from smelt.kernel.abi import POLL_SYMBOL
from smelt.machine.processor import system_triple
from smelt.packages.version import __version__
from smelt.runtime import native
from smelt.runtime.native import generic_target, native_object, native_source
from smelt.runtime.shared_object import Part, SharedObject
from smelt.saved.file import ProgramFile
from smelt.saved.library_tables import Tables

Array = np.ndarray[Any, Any]
_FUNCTIONS: Final = ("open", "close", "shapes", "run", "describe", "version")
_TYPES: Final = Path(native.__file__).parent / "c" / "library_api.h"
_PROTOTYPES: Final = """
/* Find a program, by null the first one. It is closed when no call of it runs. */
int {p}_open(const char *name, const smelt_options *options, smelt_program **program,
    smelt_error *error);
void {p}_close(smelt_program *program);

/* Write types and shapes of the results for arguments, whose elements are not read. */
int {p}_shapes(smelt_program *program, const smelt_tensor *inputs, int32_t input_count,
    smelt_tensor *outputs, int32_t output_count, smelt_error *error);

/* Compute the results in the caller's memory; several threads may call at the same time. */
int {p}_run(smelt_program *program, const smelt_tensor *inputs, int32_t input_count,
    smelt_tensor *outputs, int32_t output_count, smelt_error *error);

/* Arguments and results as text, and the version of Smelt. */
const char *{p}_describe(const smelt_program *program);
const char *{p}_version(void);
"""


def save_library(
    program: str | Path, path: str | Path, *, header: str | Path | None = None
) -> tuple[Path, Path]:
    """Make a shared library and a C header of a program file that `sm.save` wrote.

    Args:
        program: the program file; only one that you trust, since its code goes into the library.
        path: the library, such as "libmodel.so". Its functions begin with the name: `model_run`.
        header: the header; `model.h` beside the library by default.

    Returns:
        The paths of library and header.

    Raises:
        LibraryError for a program with a part that NumPy computes; ProgramMachineError for a file
        without code for this kind of system; the errors of a damaged or untrusted file; OSError.
    """
    target = Path(path)
    prefix = re.sub(r"\W", "_", target.name.partition(".")[0].removeprefix("lib"))
    if not prefix.isidentifier():
        expected = "a name of which C makes functions, such as libmodel.so"
        raise ArgumentError.of("save_library", "path", str(path), expected)
    file = ProgramFile(Path(program))
    file.check_trust()
    with file.reading():
        tables = Tables(file, _plans_here(file))
    runtime = [("thread pool", native.ir()), ("library", native_source("library"))]
    objects = [Part(native_object(what, text)) for what, text in runtime]
    polled = {POLL_SYMBOL: "smelt_poll_words"}
    objects += [Part(code, polled, "libm.so.6") for code in tables.codes]
    exports = {f"{prefix}_{name}": f"smelt_library_{name}" for name in _FUNCTIONS}
    shared = SharedObject(objects, exports, "smelt_library_unload", target.name)
    words, constants = tables.finish(
        lambda number, name: shared.symbol(len(runtime) + number, name), shared.tables_at
    )
    _write(target, shared, words, constants)
    described = Path(header) if header is not None else target.with_name(f"{prefix}.h")
    described.write_text(_header(prefix, target.name, tables.texts), encoding="utf-8")
    return target, described


def _header(prefix: str, library: str, programs: Sequence[str]) -> str:
    """Return the C header of a library."""
    lines = "".join(f"   {text}\n" for text in programs)
    return f"""/* Programs of {library}, made by Smelt {__version__}:

{lines}*/
#ifndef {prefix.upper()}_H
#define {prefix.upper()}_H

{_TYPES.read_text(encoding="utf-8")}
#ifdef __cplusplus
extern "C" {{
#endif
{_PROTOTYPES.format(p=prefix)}
#ifdef __cplusplus
}}
#endif

#endif
"""


def _plans_here(file: ProgramFile) -> list[str]:
    """Return the instruction sets in the file that are of this system's architecture."""
    here = (system_triple() or generic_target()[0]).partition("-")[0]
    sets: dict[str, str] = {}
    for entries in file.facts["programs"].values():
        for plan in (p for entry in entries for p in entry["plans"]):
            sets[str(plan["isa"])] = str(plan["target"]["triple"]).partition("-")[0]
    chosen = [isa for isa, architecture in sets.items() if architecture == here]
    if not chosen:
        reason = f"a library is made for {here}"
        raise ProgramMachineError(path=file.path.name, sets=", ".join(sets), reason=reason)
    return chosen


def _write(path: Path, shared: SharedObject, words: bytes, constants: Sequence[Array]) -> None:
    """Write the library so that it appears whole or not at all."""
    sizes = [-(-len(part) // 64) * 64 for part in (words, *(x.data for x in constants))]
    total = sum(sizes)
    temporary = path.with_name(f".{path.name}.{os.urandom(8).hex()}")
    try:
        with temporary.open("xb") as out:
            out.write(shared.finish(total))
            for part, size in zip((words, *(x.data for x in constants)), sizes, strict=True):
                out.write(part)
                out.write(bytes(size - len(part)))
            out.write(shared.section_table(shared.tables_at + total))
        temporary.chmod(0o755)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
