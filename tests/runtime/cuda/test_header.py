"""What the runtime says about the driver and DLPack, against the headers of NVIDIA and torch.

Triton's package contains the first one and torch's the second; both are read, not compiled.
"""

from __future__ import annotations

import ctypes
import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.cuda.cuda_header import Header, layout, layout_of, read_header
from tools.runtime_ir import FOLDER as SOURCES

from smelt.runtime import native_layout
from smelt.runtime.cuda import copies, dlpack, driver, native_call


def header_of(package: str, *parts: str) -> Path:
    """Return a header that a package contains; skip the test without it."""
    spec = importlib.util.find_spec(package)
    folder = None if spec is None or spec.origin is None else Path(spec.origin).parent
    path = None if folder is None else folder.joinpath(*parts)
    if path is None or not path.exists():
        pytest.skip(f"{package} is not installed, or has no {parts[-1]}")
    return path


@pytest.fixture(scope="module")
def cuda() -> Header:
    return read_header(header_of("triton", "backends", "nvidia", "include", "cuda.h"))


KINDS = {
    "p": {"address"},
    "s": {"address"},
    "i": {"int"},
    "u": {"unsigned int"},
    "q": {"size_t", "unsigned long long"},
    "b": {"unsigned char"},
    "h": {"unsigned short"},
}
"""What a letter of a signature may stand for."""
CONSTANTS = {
    "CUDA_ERROR_NOT_READY": driver.NOT_READY,
    "CUDA_ERROR_INVALID_VALUE": driver.INVALID_VALUE,
    "CUDA_ERROR_OUT_OF_MEMORY": driver.OUT_OF_MEMORY,
    "CUDA_ERROR_STREAM_CAPTURE_ISOLATION": driver.CAPTURE_ISOLATION,
    "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT": driver.CAPTURE_IMPLICIT,
    "CU_STREAM_CAPTURE_STATUS_NONE": driver.NOT_CAPTURING,
    "CU_STREAM_CAPTURE_MODE_RELAXED": driver.RELAXED_CAPTURE,
    "CU_EVENT_DISABLE_TIMING": driver.NO_TIMING,
    "CU_STREAM_NON_BLOCKING": driver.NON_BLOCKING,
    "CU_MEMPOOL_ATTR_RELEASE_THRESHOLD": driver.RELEASE_THRESHOLD,
    "CU_MEMORYTYPE_DEVICE": copies.DEVICE_MEMORY,
    "CU_JIT_ERROR_LOG_BUFFER": driver.ERROR_LOG,
    "CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES": driver.ERROR_LOG_BYTES,
    "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES": driver.SHARED_ON_REQUEST,
    "CU_FUNC_CACHE_PREFER_SHARED": driver.PREFER_SHARED,
    "CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT": driver.MULTIPROCESSORS,
    "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR": driver.MAJOR,
    "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR": driver.MINOR,
    "CU_DEVICE_ATTRIBUTE_CLOCK_RATE": driver.FACTS["clock_khz"],
    "CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE": driver.FACTS["memory_khz"],
    "CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH": driver.FACTS["bus_bits"],
    "CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE": driver.FACTS["cache_bytes"],
    "CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": driver.FACTS["shared_bytes"],
    "CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR": driver.FACTS["registers"],
    "CU_DEVICE_ATTRIBUTE_SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO": driver.FACTS["double_ratio"],
    "CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS": driver.READS_PAGEABLE_MEMORY,
}
LOST = {
    *("CUDA_ERROR_ECC_UNCORRECTABLE", "CUDA_ERROR_NVLINK_UNCORRECTABLE"),
    *("CUDA_ERROR_CONTEXT_IS_DESTROYED", "CUDA_ERROR_ASSERT"),
}
"""Statuses that end a context though the header does not say that the process is inconsistent."""
ELSEWHERE = {"CUDA_ERROR_MPS_CLIENT_TERMINATED", "CUDA_ERROR_EXTERNAL_DEVICE"}
"""Statuses that the header calls lasting, and that no kernel of ours has caused."""


NEWER = {"cuEventElapsedTime": "cuEventElapsedTime_v2"}
"""Functions of CUDA 12 that programs of CUDA 13 link in a version with the same parameters."""


def test_every_function_has_the_parameters_of_the_header(cuda: Header):
    for name, letters in driver.SIGNATURES.items():
        is_old = name not in cuda.functions  # a name without the version of today is missing here
        kinds = cuda.functions[NEWER[name] if is_old else name]
        assert len(kinds) == len(letters), name
        assert all(k in KINDS[x] for x, k in zip(letters, kinds, strict=True)), (name, kinds)


def test_names_without_a_version_are_those_of_old_functions(cuda: Header):
    old = {"cuMemcpyHtoDAsync", "cuEventDestroy", "cuCtxPopCurrent", "cuStreamBeginCapture"}
    assert not old & {*cuda.functions}


def test_every_constant_is_the_header_s(cuda: Header):
    assert {name: cuda.constants[name] for name in CONSTANTS} == CONSTANTS


def test_statuses_that_end_a_context_are_those_that_the_header_names(cuda: Header):
    lasting = {
        name
        for name, text in cuda.comments.items()
        if name.startswith("CUDA_ERROR") and "inconsistent" in text
    }
    assert len(lasting) > 8
    names = lasting - ELSEWHERE | LOST
    assert {cuda.constants[n] for n in names} == driver.LOST


def test_structures_have_the_header_s_layout(cuda: Header):
    assert layout_of(copies._Copy2D) == layout(cuda.structures["CUDA_MEMCPY2D_v2"])
    *_, (nbytes, _) = layout(cuda.structures["CUgraphExecUpdateResultInfo_v1"])
    assert nbytes <= 32  # what `graphs` reserves


def test_native_code_calls_functions_with_the_header_s_parameters(cuda: Header):
    source = (SOURCES / "device.h").read_text()
    source = source.replace("i32 launch_function(", "i32 (*cuLaunchKernel)(")
    functions = re.findall(r"i32 \(\*(cu\w+)\)\(([^)]*)\);", source)
    assert {name for name, _ in functions} == {*native_call.FUNCTIONS}
    kinds = {"i64": KINDS["q"] | {"address"}, "i32": KINDS["i"], "u32": KINDS["u"]}
    for name, arguments in functions:
        types = ["*" if "*" in a else a.split()[0] for a in arguments.split(",")]
        declared = cuda.functions[name]
        assert len(types) == len(declared), name
        for t, k in zip(types, declared, strict=True):
            assert k in kinds.get(t, {"address"}), name


def test_a_description_begins_with_the_driver_s_functions():
    first = list(native_layout.DEVICE_CALL)[: len(native_call.FUNCTIONS)]
    assert first == [name.upper() for name in native_call.FUNCTIONS]


def test_dlpack_s_structures_have_the_layout_of_torch_s_header():
    header = read_header(header_of("torch", "include", "ATen", "dlpack.h"))

    def flat(name: str) -> tuple[str, ...]:
        """The kinds of a structure's fields; a part that is a structure has no padding."""
        parts = header.structures[name]
        return tuple(k for p in parts for k in (flat(p) if p in header.structures else (p,)))

    def flat_of(structure: Any) -> list[tuple[int, int]]:
        result: list[tuple[int, int]] = []
        for name, *_ in structure._fields_:
            field = getattr(structure, name)
            parts = layout_of(dlpack._Tensor)[:-1] if name == "tensor" else [(0, field.size)]
            result += [(field.offset + at, size) for at, size in parts]
        return [*result, (ctypes.sizeof(structure), 0)]

    for ours, theirs in (
        (dlpack._Tensor, "DLTensor"),
        (dlpack._Managed, "DLManagedTensor"),
        (dlpack._Versioned, "DLManagedTensorVersioned"),
    ):
        assert flat_of(ours) == layout(flat(theirs)), theirs
    assert header.constants["kDLCUDA"] == dlpack.CUDA
    codes = {"int": "kDLInt", "uint": "kDLUInt", "float": "kDLFloat", "bool": "kDLBool"}
    assert {k: header.constants[n] for k, n in codes.items()} == dlpack._KINDS
    assert header.constants["kDLBfloat"] == dlpack._BFLOAT
