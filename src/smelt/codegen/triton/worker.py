"""Compile Triton programs in a process of its own; nothing here imports Smelt.

The process reads requests from its standard input, one JSON object a line, and answers each with
a line. `smelt.codegen.triton.worker_process` starts it, and ends it when it hangs.

    request   {"path": [...]}                     once: the import path of the caller
    request   {"text", "symbol", "arch", ...}     an entry of a printed text
    answer    {"image": base64, "ptx": ..., "registers": ..., ...} or {"error": ...}
"""

from __future__ import annotations

import base64
import collections
import importlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MNEMONIC = re.compile(r"^\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)", re.MULTILINE)
AMD_MNEMONIC = re.compile(r"^\t([a-z][a-z0-9_]+)", re.MULTILINE)
LOCAL_ARRAY = re.compile(r"\.local \.align \d+ \.b8\s+\w+\[(\d+)\]")
LABEL = re.compile(r"^\s*([.$]\w+):")
BRANCH = re.compile(r"\bBRA\b[^`]*`\(([.$]\w+)\)")
LOCAL_ACCESS = re.compile(r"\b(?:LDL|STL)\b")
USAGE = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:(\d+)")
ENTRY = re.compile(r"\.entry\s+\w+\(([^)]*)\)")
PARAMETER = re.compile(r"\.param\s+(?:\.align\s+\d+\s+)?\.[a-z](\d+)[^,\n\[]*(?:\[(\d+)\])?")
RESERVED_BYTES = 1024
"""Shared memory of the system in a program, which cuobjdump counts from sm_90 on."""
FIRST_RESERVING = 90
PLAIN_LAUNCH = {
    "num_ctas": 1,
    "launch_cooperative_grid": False,
    "launch_pdl": False,
    "profile_scratch_size": 0,
}
"""What a program says of its launch if a grid, threads, arguments and memory are all of it."""
DESCRIPTOR_ALIGNMENT = 128
"""Alignment of a program's scratch memory in bytes, which the runtime keeps."""


def main() -> None:
    """Answer requests until the input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    with tempfile.TemporaryDirectory(prefix="smelt-triton-") as folder:
        sys.path.clear()
        sys.path.extend(json.loads(sys.stdin.readline())["path"])
        for count, line in enumerate(sys.stdin):
            try:
                answer = compiled(json.loads(line), Path(folder) / f"program{count}.py")
            except Exception as error:  # noqa: BLE001 - the caller raises it
                answer = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps(answer), file=answers, flush=True)


def compiled(request: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """Return the code of an entry and what it needs; raise what Triton raises."""
    compiler: Any = importlib.import_module("triton.compiler")
    triton: Any = importlib.import_module("triton")
    function = getattr(loaded(request["text"], file), request["symbol"])
    arch = request["arch"]
    triton.knobs.cache.dir = str(file.with_name("cache"))
    result = triton.compile(
        ast_source(compiler, function, request),
        target=gpu_target(arch),
        options={
            "num_warps": request["warps"],
            "num_stages": request["stages"],
            "enable_fp_fusion": False,
        },
    )
    refuse_other_launches(result.metadata)
    facts = {
        "shared": int(result.metadata.shared),
        "warps": int(result.metadata.num_warps),
        "tensor_memory": int(getattr(result.metadata, "tmem_size", 0) or 0),
        "scratch": int(getattr(result.metadata, "global_scratch_size", 0) or 0),
        "symbol": result.metadata.name,
        "ttir": str(result.asm["ttir"]),
    }
    if arch.startswith("gfx"):
        text, image = result.asm["amdgcn"], result.asm["hsaco"]
        facts |= amd_resources(text)
    else:
        text, image = result.asm["ptx"], result.asm["cubin"]
        reserved = RESERVED_BYTES if int(arch.removeprefix("sm_")) >= FIRST_RESERVING else 0
        facts |= nvidia_resources(image, text, Path(triton.__file__).parent, file, reserved)
    return {**facts, "assembly": text, "image": base64.b64encode(image).decode()}


def refuse_other_launches(metadata: Any) -> None:
    """Raise RuntimeError for a program that is launched with more than arguments and memory."""
    for name, plain in PLAIN_LAUNCH.items():
        value = getattr(metadata, name, plain)
        if value != plain:
            raise RuntimeError(f"the program needs {name} = {value} at its launch")
    if getattr(metadata, "global_scratch_align", 1) > DESCRIPTOR_ALIGNMENT:
        raise RuntimeError(f"scratch memory is aligned at {metadata.global_scratch_align} bytes")


def ast_source(compiler: Any, function: Any, request: Mapping[str, Any]) -> Any:
    """Return the entry as Triton takes it: the types, the constants and what is known of numbers.

    AMD's back end has buffer instructions for arrays whose offsets have 32 bits: an address of all
    lanes, and bounds that need no branch.
    """
    language: Any = importlib.import_module("triton.language")
    names = function.arg_names
    constants = {
        (names.index(n),): getattr(language, v.removeprefix("tl.")) if isinstance(v, str) else v
        for n, v in request["constants"].items()
    }
    signature = {n: request["signature"].get(n, "constexpr") for n in names}
    attributes = {(names.index(n),): [["tt.divisibility", 16]] for n in request["divisible"]}
    for n in request["near"] if request["arch"].startswith("gfx") else ():
        attributes.setdefault((names.index(n),), []).append(["tt.pointer_range", 32])
    return compiler.ASTSource(function, signature, constants, attributes)


def gpu_target(arch: str) -> Any:
    """Return Triton's target of an architecture such as sm_90 or gfx942."""
    backends: Any = importlib.import_module("triton.backends.compiler")
    if arch.startswith("gfx"):
        return backends.GPUTarget("hip", arch, 64)
    return backends.GPUTarget("cuda", int(arch.removeprefix("sm_")), 32)


def loaded(text: str, file: Path) -> Any:
    """Return the module of a text, whose functions Triton reads from the file."""
    file.write_text(text, encoding="utf-8")
    spec: Any = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def nvidia_resources(
    image: bytes, ptx: str, package: Path, file: Path, reserved: int
) -> dict[str, Any]:
    """Return registers, spilled bytes, static shared memory and instructions of a cubin."""
    tools = package / "backends" / "nvidia" / "bin"
    cubin = file.with_suffix(".cubin")
    cubin.write_bytes(image)
    usage = USAGE.search(run(tools / "cuobjdump", "-res-usage", cubin))
    if usage is None:
        raise RuntimeError("cuobjdump reports no registers")
    registers, stack, shared = map(int, usage.groups())
    counts: collections.Counter[str] = collections.Counter()
    listing = run(tools / "nvdisasm", "-c", cubin)
    for name in MNEMONIC.findall(listing):
        stem, *suffixes = name.split(".")
        counts[f"{stem}.128" if "128" in suffixes and stem in ("LDG", "STG") else stem] += 1
    return {
        "registers": registers,
        "spills": spilled_bytes(stack, ptx, counts),
        "loops_spill": loops_spill(listing),
        "parameters": parameter_bytes(ptx),
        "static_shared": max(shared - reserved, 0),
        "instructions": dict(counts),
    }


def spilled_bytes(stack: int, ptx: str, counts: collections.Counter[str]) -> int:
    """Return the bytes of a stack that spilled registers take.

    These are what the arrays of the program itself leave, if the program reads them: on sm_120,
    waits for tensor copies write zeros that nothing reads.

    >>> counts = collections.Counter(STL=2, LDL=1)
    >>> spilled_bytes(24, ".local .align 16 .b8 array[16];", counts), spilled_bytes(8, "", counts)
    (8, 8)
    >>> spilled_bytes(8, "", collections.Counter(STL=2))
    0
    """
    arrays = sum(-(-int(n) // 8) * 8 for n in LOCAL_ARRAY.findall(ptx))
    return max(stack - arrays, 0) if counts["LDL"] else 0


def loops_spill(listing: str) -> bool:
    """Return whether a loop accesses local memory, or the program has no loop.

    A loop is what lies between a label and a branch back to it; functions count as called in one.
    A branch to itself ends every program.

    >>> body = ".L_x_0:\\n FFMA R1, R2, R3, R1 ;\\n @P0 BRA `(.L_x_0) ;\\n"
    >>> loops_spill("STL [R1], R6 ;\\n" + body + "LDL R6, [R1] ;")
    False
    >>> loops_spill(".L_x_0:\\n BRA `(.L_x_0) ;"), loops_spill(body.replace("FFMA", "LDL"))
    (True, True)
    """
    labels: dict[str, int] = {}
    loops: list[tuple[int, int]] = []
    local: list[int] = []
    functions = 0
    for number, line in enumerate(listing.splitlines()):
        if label := LABEL.match(line):
            labels[label[1]] = number
            functions = functions or number * label[1].startswith("$")
        elif (branch := BRANCH.search(line)) and branch[1] in labels:
            loops.append((labels[branch[1]] + 1, number))
        elif LOCAL_ACCESS.search(line):
            local.append(number)
    end = functions or len(listing)
    loops = [(first, last) for first, last in loops if first < last < end]
    return not loops or any(n > end or first <= n < last for n in local for first, last in loops)


def parameter_bytes(ptx: str) -> list[int]:
    """Return the bytes of each parameter of the entry of a program.

    >>> parameter_bytes(".entry k(.param .u64 .ptr .global .align 1 a, .param .u32 b)")
    [8, 4]
    """
    (entry,) = ENTRY.findall(ptx)
    return [int(bits) // 8 * int(count or 1) for bits, count in PARAMETER.findall(entry)]


def amd_resources(text: str) -> dict[str, Any]:
    """Return registers, spilled bytes and instructions of an AMD program's assembly."""
    facts = {
        name: int(number)
        for name, number in re.findall(r"\.(\w+_count|\w+_fixed_size):\s+(\d+)", text)
    }
    return {
        "registers": facts.get("vgpr_count", 0),
        "spills": 4 * facts.get("vgpr_spill_count", 0),
        "loops_spill": True,
        "static_shared": 0,
        "instructions": dict(collections.Counter(AMD_MNEMONIC.findall(text))),
    }


def run(tool: Path, *arguments: str | Path) -> str:
    """Return what a tool of Triton's package prints; raise CalledProcessError if it fails."""
    command = [str(tool), *map(str, arguments)]
    completed = subprocess.run(  # noqa: S603 - a tool of Triton's package
        command, capture_output=True, text=True, check=True
    )
    return completed.stdout


if __name__ == "__main__":
    main()
