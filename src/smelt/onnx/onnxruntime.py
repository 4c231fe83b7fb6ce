"""Names of the package onnxruntime, for libraries that import it.

    import smelt as sm

    sm.onnx.as_onnxruntime()        # before the library is imported
    from fastembed import TextEmbedding

The library's sessions are then `InferenceSession` of this module. What it asks of ONNX Runtime's
thread pools, memory arena and optimiser has no counterpart here and changes nothing; what would
change results is refused.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from enum import IntEnum
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import numpy as np

from smelt.errors import ArgumentError, OnnxTypeError, UnsupportedError
from smelt.knobs import config
from smelt.onnx.session import NodeArg, Session, read_source
from smelt.onnx.tensors import type_number, type_text

__all__ = [
    "ExecutionMode",
    "GraphOptimizationLevel",
    "IOBinding",
    "InferenceSession",
    "ModelMetadata",
    "NodeArg",
    "OrtValue",
    "RunOptions",
    "SessionOptions",
    "as_onnxruntime",
    "disable_telemetry_events",
    "enable_telemetry_events",
    "get_all_providers",
    "get_available_providers",
    "get_device",
    "preload_dlls",
    "set_default_logger_severity",
    "set_default_logger_verbosity",
    "set_seed",
]

INTERFACE_VERSION = "1.23.0"
"""`onnxruntime.__version__` where the package is not installed: whose names these are."""

_PROVIDERS = ("CPUExecutionProvider",)


class GraphOptimizationLevel(IntEnum):
    """Levels of ONNX Runtime's optimiser, which change nothing here."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(IntEnum):
    """Orders in which ONNX Runtime runs nodes, which change nothing here."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class _Settings:
    """Attributes with defaults, and entries by key; an unknown attribute is an AttributeError."""

    _defaults: ClassVar[Mapping[str, Any]] = {}
    _refused: ClassVar[Mapping[str, str]] = {}
    """Attributes that take their default alone -> what to do instead."""

    _entries: dict[str, str]

    def __init__(self) -> None:
        self.__dict__.update(self._defaults, _entries={})

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute that onnxruntime knows; raises UnsupportedError for one refused."""
        if name not in self._defaults:
            raise AttributeError(f"onnxruntime's {type(self).__name__} has no attribute {name!r}")
        if name in self._refused and value != self._defaults[name]:
            raise UnsupportedError(f"{name} = {value!r} of onnxruntime", hint=self._refused[name])
        self.__dict__[name] = value

    def _add(self, key: str, value: str) -> None:
        self._entries[key] = value

    def _get(self, key: str) -> str:
        if key not in self._entries:
            raise ArgumentError(f"{type(self).__name__}: no entry {key!r} was added")
        return self._entries[key]

    def __getstate__(self) -> dict[str, Any]:
        return dict(self.__dict__)

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)


class SessionOptions(_Settings):
    """Options of a session, of which `intra_op_num_threads` limits the threads of a call."""

    _defaults: ClassVar[Mapping[str, Any]] = {
        "enable_cpu_mem_arena": True,
        "enable_mem_pattern": True,
        "enable_mem_reuse": True,
        "enable_profiling": False,
        "execution_mode": ExecutionMode.ORT_SEQUENTIAL,
        "execution_order": 0,
        "graph_optimization_level": GraphOptimizationLevel.ORT_ENABLE_ALL,
        "inter_op_num_threads": 0,
        "intra_op_num_threads": 0,
        "log_severity_level": -1,
        "log_verbosity_level": 0,
        "logid": "",
        "optimized_model_filepath": "",
        "profile_file_prefix": "onnxruntime_profile_",
        "use_deterministic_compute": False,
        "use_per_session_threads": True,
    }
    _refused: ClassVar[Mapping[str, str]] = {
        "enable_profiling": "sm.explain(*model.program(feeds)) shows what a model costs.",
        "optimized_model_filepath": "session.save(path) writes the compiled model.",
    }

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Store an entry, which changes nothing."""
        self._add(key, value)

    def get_session_config_entry(self, key: str) -> str:
        """Return an entry that was added; raises ArgumentError."""
        return self._get(key)

    def add_free_dimension_override_by_name(self, name: str, value: int) -> None:
        """Accept a likely size, which changes nothing: one program serves all sizes."""

    add_free_dimension_override_by_denotation = add_free_dimension_override_by_name

    def register_custom_ops_library(self, path: str) -> None:
        """Raise UnsupportedError: operators of other libraries have no meaning here."""
        raise UnsupportedError(f"operators of the library {path}, which ONNX Runtime would load")


class RunOptions(_Settings):
    """Options of a call, which change nothing."""

    _defaults: ClassVar[Mapping[str, Any]] = {
        "log_severity_level": -1,
        "log_verbosity_level": 0,
        "logid": "",
        "only_execute_path_to_fetches": False,
        "terminate": False,
    }

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Store an entry, which changes nothing."""
        self._add(key, value)

    def get_run_config_entry(self, key: str) -> str:
        """Return an entry that was added; raises ArgumentError."""
        return self._get(key)


class ModelMetadata(SimpleNamespace):
    """What a file says of itself: producer_name, version, custom_metadata_map and the like."""


class InferenceSession(Session):
    """A model with the methods of onnxruntime's InferenceSession.

    Args:
        path_or_bytes: path of a file, or its bytes.
        sess_options: `intra_op_num_threads` limits the threads of a call.
        providers: where to run; what is not the CPU is passed over.
        provider_options: accepted and ignored.

    Raises what `smelt.onnx.load` raises.
    """

    def __init__(
        self,
        path_or_bytes: str | os.PathLike[str] | bytes,
        sess_options: SessionOptions | None = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Any] | None = None,
        **_: Any,
    ) -> None:
        model, external, name = read_source(path_or_bytes)
        super().__init__(model, external, "reference", name)
        self._sess_options = sess_options or SessionOptions()
        self._model_path = "" if isinstance(path_or_bytes, bytes) else os.fspath(path_or_bytes)

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: Any = None,
    ) -> list[Any]:
        """Return outputs as NumPy arrays; see `Session.run`."""
        feeds = {
            name: x.numpy() if isinstance(x, OrtValue) else x for name, x in input_feed.items()
        }
        threads = self._sess_options.__dict__["intra_op_num_threads"]
        if threads <= 0:
            return super().run(output_names, feeds)
        with config(threads=threads):
            return super().run(output_names, feeds)

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: Any = None,
    ) -> list[OrtValue]:
        """Return outputs as `OrtValue`s."""
        return [OrtValue(x) for x in self.run(output_names, input_dict_ort_values)]

    def io_binding(self) -> IOBinding:
        """Return an object that holds inputs and outputs of calls."""
        return IOBinding(self)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: Any = None) -> None:
        """Run with the inputs of a binding, and store the outputs in it."""
        iobinding.run()

    def get_modelmeta(self) -> ModelMetadata:
        """Return what the file says of itself."""
        facts = self.model.facts
        return ModelMetadata(
            custom_metadata_map=dict(self.metadata),
            description=facts["description"],
            domain=facts["domain"],
            graph_description="",
            graph_name=self.model.graph.name,
            producer_name=facts["producer_name"],
            version=facts["model_version"],
        )

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Return inputs that have a default."""
        return [NodeArg(p) for p in self._optional.values()]

    def get_session_options(self) -> SessionOptions:
        """Return the options that the session was made with."""
        return self._sess_options

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """Return no options of the one provider."""
        return {name: {} for name in _PROVIDERS}

    def set_providers(self, providers: Any = None, provider_options: Any = None) -> None:
        """Accept providers; models run on the CPU."""

    def disable_fallback(self) -> None:
        """Accept the call: there is one provider."""

    enable_fallback = disable_fallback

    def __reduce__(self) -> Any:
        """Pickle a session of a file as the file's path."""
        if not self._model_path:
            raise TypeError("a session of bytes is not pickled: load it from a file")
        return type(self), (self._model_path, self._sess_options)


class OrtValue:
    """An array under the name that onnxruntime has for one."""

    def __init__(self, array: Any) -> None:
        self._array = array

    @classmethod
    def ortvalue_from_numpy(cls, array: Any, device_type: str = "cpu", device_id: int = 0) -> Any:
        """Return a value that shares a NumPy array's memory."""
        _check_device(device_type)
        return cls(np.asarray(array))

    @classmethod
    def ortvalue_from_shape_and_type(
        cls, shape: Sequence[int], element_type: Any, device_type: str = "cpu", device_id: int = 0
    ) -> Any:
        """Return a value of a shape and NumPy dtype."""
        _check_device(device_type)
        return cls(np.zeros(tuple(shape), element_type))

    def numpy(self) -> Any:
        """Return the NumPy array."""
        return self._array

    def shape(self) -> list[int]:
        """Return the shape."""
        return list(self._array.shape)

    def data_type(self) -> str:
        """Return the type as onnxruntime spells it, for instance tensor(float)."""
        return type_text(type_number(self._array.dtype))

    def element_type(self) -> Any:
        """Return the NumPy dtype."""
        return self._array.dtype

    def device_name(self) -> str:
        """Return "cpu"."""
        return "cpu"

    def is_tensor(self) -> bool:
        """Return whether it is one array rather than a list of arrays."""
        return isinstance(self._array, np.ndarray)

    has_value = is_tensor

    def data_ptr(self) -> int:
        """Return the address of the first element."""
        return self._array.ctypes.data

    def update_inplace(self, array: Any) -> None:
        """Copy an array's elements into the value."""
        np.copyto(self._array, array)


class IOBinding:
    """Inputs and outputs of calls, in memory of this process."""

    def __init__(self, session: InferenceSession) -> None:
        self._session = session
        self._inputs: dict[str, Any] = {}
        self._outputs: dict[str, Any] = {}
        """Names in the order of binding -> array to write into, or None."""
        self._results: list[OrtValue] = []

    def run(self) -> None:
        """Run the session's model; outputs with memory of their own are copied into it."""
        results = self._session.run(list(self._outputs), self._inputs)
        for result, target in zip(results, self._outputs.values(), strict=False):
            if target is not None:
                if target.shape != result.shape or target.dtype != result.dtype:
                    raise OnnxTypeError(
                        name="a bound output",
                        found=f"{target.dtype}{list(target.shape)}",
                        expected=f"{result.dtype}{list(result.shape)}",
                    )
                np.copyto(target, result)
        targets = self._outputs.values() or [None] * len(results)
        pairs = zip(results, targets, strict=True)
        self._results = [OrtValue(x if target is None else target) for x, target in pairs]

    def bind_cpu_input(self, name: str, arr_on_cpu: Any) -> None:
        """Take an array for an input."""
        self._inputs[name] = arr_on_cpu

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        """Take a value for an input."""
        self._inputs[name] = ortvalue

    def bind_input(
        self,
        name: str,
        device_type: str,
        device_id: int,
        element_type: Any,
        shape: Sequence[int],
        buffer_ptr: int,
    ) -> None:
        """Take memory at an address for an input."""
        _check_device(device_type)
        self._inputs[name] = _array_at(buffer_ptr, shape, element_type)

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Ask for an output, in memory at an address if one is passed."""
        _check_device(device_type)
        at = None if not buffer_ptr else _array_at(buffer_ptr, shape or (), element_type)
        self._outputs[name] = at

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        """Ask for an output, in a value's memory."""
        self._outputs[name] = ortvalue.numpy()

    def get_outputs(self) -> list[OrtValue]:
        """Return the outputs of the last call."""
        return self._results

    def copy_outputs_to_cpu(self) -> list[Any]:
        """Return the outputs of the last call as NumPy arrays."""
        return [x.numpy() for x in self._results]

    def clear_binding_inputs(self) -> None:
        """Forget the inputs."""
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        """Forget the outputs."""
        self._outputs.clear()
        self._results = []

    def synchronize_inputs(self) -> None:
        """Accept the call: memory of this process needs no transfer."""

    synchronize_outputs = synchronize_inputs


def _check_device(name: str) -> None:
    if name.lower() != "cpu":
        raise UnsupportedError(f"memory of the device {name!r}", hint="Models run on the CPU.")


def _array_at(address: int, shape: Sequence[int], element_type: Any) -> Any:
    dtype = np.dtype(element_type)
    interface = {
        "data": (address, False),
        "shape": tuple(shape),
        "typestr": dtype.str,
        "version": 3,
    }
    return np.asarray(SimpleNamespace(__array_interface__=interface))


# Functions of the module onnxruntime


def get_available_providers() -> list[str]:
    """Return the name of the one provider, the CPU."""
    return list(_PROVIDERS)


get_all_providers = get_available_providers


def get_device() -> str:
    """Return "CPU"."""
    return "CPU"


def set_default_logger_severity(severity: int) -> None:
    """Accept a level of ONNX Runtime's log, which has no lines here."""


def set_default_logger_verbosity(verbosity: int) -> None:
    """Accept a level of ONNX Runtime's log, which has no lines here."""


def set_seed(seed: int) -> None:
    """Accept a seed: random operators are onnx's own, with seeds in their attributes."""


def preload_dlls(*_: Any, **__: Any) -> None:
    """Accept the call: there are no libraries of a GPU to load."""


def enable_telemetry_events() -> None:
    """Accept the call: nothing is reported to anybody."""


disable_telemetry_events = enable_telemetry_events


# The substitution

_NAME = "onnxruntime"


@contextmanager
def _restored(previous: ModuleType | None) -> Generator[ModuleType]:
    module = sys.modules[_NAME]
    try:
        yield module
    finally:
        if sys.modules.get(_NAME) is module:
            if previous is None:
                del sys.modules[_NAME]
            else:
                sys.modules[_NAME] = previous


def as_onnxruntime() -> Any:
    """Make `import onnxruntime` give Smelt's sessions from here on.

    Call it before the libraries that use onnxruntime are imported. It may be the context of a
    `with` block, after which imports give the installed package again. Modules that are inside
    the installed package (`onnxruntime.quantization`) stay its own.

    Raises ArgumentError if a module that is imported already uses the installed package.
    """
    previous = sys.modules.get(_NAME)
    if previous is not None and not hasattr(previous, "as_onnxruntime"):
        _check_users(previous)
    installed = PathFinder.find_spec(_NAME)
    module = ModuleType(_NAME, __doc__)
    module.__dict__.update({name: globals()[name] for name in __all__})
    spec = ModuleSpec(_NAME, None, origin=__file__, is_package=True)
    folders = None if installed is None else installed.submodule_search_locations
    spec.submodule_search_locations = list(folders or ())
    module.__spec__, module.__path__ = spec, spec.submodule_search_locations
    module.__dict__["__version__"] = _installed_version(folders) or INTERFACE_VERSION
    sys.modules[_NAME] = module
    return _restored(previous)


def _installed_version(folders: Sequence[str] | None) -> str:
    """Return the version that the folder beside the installed package names; empty if none."""
    for folder in folders or ():
        for metadata in Path(folder).parent.glob(f"{_NAME}*-*.dist-info"):
            return metadata.name.removesuffix(".dist-info").rpartition("-")[2]
    return ""


def _check_users(installed: ModuleType) -> None:
    """Raise ArgumentError if modules outside of the package hold something of it."""
    users = [
        name
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] != _NAME and _uses(module, installed)
    ]
    if users:
        raise ArgumentError(
            f"as_onnxruntime: {', '.join(users[:3])} uses the installed onnxruntime already",
            hint="Call sm.onnx.as_onnxruntime() before that is imported.",
        )


def _uses(module: Any, installed: ModuleType) -> bool:
    values = list(getattr(module, "__dict__", {}).values())
    return any(
        x is installed or (isinstance(x, type) and str(x.__module__).partition(".")[0] == _NAME)
        for x in values
    )
