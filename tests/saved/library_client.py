"""Call a library of programs as C does, by its header alone: this module does not import Smelt."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

MAX_RANK = 8
TYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
)
ALLOC = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p)
RELEASE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)


class Tensor(ctypes.Structure):
    """The header's smelt_tensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("shape", ctypes.c_int64 * MAX_RANK),
    )


class Error(ctypes.Structure):
    """The header's smelt_error."""

    _fields_ = (("code", ctypes.c_int32), ("text", ctypes.c_char * 508))


class Options(ctypes.Structure):
    """The header's smelt_options."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("threads", ctypes.c_int64),
        ("alloc", ALLOC),
        ("release", RELEASE),
        ("user", ctypes.c_void_p),
    )


class LibraryFailure(Exception):
    """What a function of a library returned: its code and text."""

    def __init__(self, error: Error) -> None:
        super().__init__(error.text.decode())
        self.code = error.code


def tensor(array: np.ndarray[Any, Any]) -> Tensor:
    """Return an array of C."""
    shape = (ctypes.c_int64 * MAX_RANK)(*array.shape)
    return Tensor(array.ctypes.data, TYPES.index(array.dtype.name), array.ndim, shape)


class Library:
    """The functions of a library."""

    def __init__(self, path: str, prefix: str) -> None:
        self.functions = ctypes.CDLL(path)
        self.prefix = prefix

    def function(self, name: str) -> Any:
        """Return one of the functions."""
        return getattr(self.functions, f"{self.prefix}_{name}")

    def open(self, name: str | None = None, threads: int = 0, **fields: Any) -> Program:
        """Return a program; raises LibraryFailure."""
        handle, error = ctypes.c_void_p(), Error()
        options = Options(size=ctypes.sizeof(Options), threads=threads, **fields)
        self.function("open")(
            None if name is None else name.encode(),
            ctypes.byref(options),
            ctypes.byref(handle),
            ctypes.byref(error),
        )
        if error.code:
            raise LibraryFailure(error)
        return Program(self, handle, options)


class Program:
    """An open program."""

    def __init__(self, library: Library, handle: ctypes.c_void_p, options: Options) -> None:
        self.library, self.handle, self.options = library, handle, options
        describe = library.function("describe")
        describe.restype = ctypes.c_char_p
        self.text = describe(handle).decode()
        self.results = 0 if self.text.endswith("-> nothing") else self.text.count("; ") + 1

    def close(self) -> None:
        """Close the program."""
        self.library.function("close")(self.handle)

    def call(self, name: str, inputs: list[Tensor], outputs: Any) -> None:
        """Call `shapes` or `run`; raises LibraryFailure."""
        error = Error()
        arguments = (Tensor * len(inputs))(*inputs)
        code = self.library.function(name)(
            self.handle, arguments, len(inputs), outputs, len(outputs), ctypes.byref(error)
        )
        assert code == error.code
        if code:
            raise LibraryFailure(error)

    def __call__(self, *arrays: Any) -> list[np.ndarray[Any, Any]]:
        """Return the results for arrays and numbers."""
        held = [np.ascontiguousarray(x) if np.ndim(x) else np.asarray(x) for x in arrays]
        inputs, outputs = [tensor(x) for x in held], (Tensor * self.results)()
        self.call("shapes", inputs, outputs)
        results: list[np.ndarray[Any, Any]] = []
        for x in outputs:
            results.append(np.empty(x.shape[: x.rank], TYPES[x.dtype]))
            x.data = results[-1].ctypes.data
        self.call("run", inputs, outputs)
        return results


def unload(library: Library) -> None:
    """Unload a library, whose functions must not be called any more."""
    close = ctypes.CDLL(None).dlclose
    close.argtypes = (ctypes.c_void_p,)
    assert close(library.functions._handle) == 0
