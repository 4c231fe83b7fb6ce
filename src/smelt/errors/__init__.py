"""Errors, warnings and fusion reasons: one tree, stable codes, a page for each.

An error has a code, a line that says what is wrong, the user's line and a hint. Each class also
derives from the matching built-in exception, so `except ValueError` keeps working.

>>> error = ShapeError(op="add", operands="f32[3, 4], f32[5]", reason="4 and 5 differ")
>>> print(error.message)
add(f32[3, 4], f32[5]): 4 and 5 differ
>>> isinstance(error, ValueError), error.code
(True, 'E101')
"""

from smelt.errors.array import (
    ArgumentError,
    AxisError,
    DTypeError,
    GradientError,
    IndexRangeError,
    OutsideError,
    OverflowSizeError,
    RangeError,
    ShapeError,
    UnknownNameError,
    UnsupportedError,
)
from smelt.errors.escape import escape_controls
from smelt.errors.files import (
    LibraryError,
    ProgramFileError,
    ProgramMachineError,
    ProgramTrustError,
    ProgramVersionError,
    SaveError,
)
from smelt.errors.gpu import (
    CaptureError,
    DeviceForkError,
    DeviceLayoutError,
    DeviceMemoryError,
    DeviceSizeError,
    DriverCallError,
    NoDriverError,
    OldDriverError,
)
from smelt.errors.machine import (
    CacheError,
    CacheWarning,
    CodegenError,
    DeviceCompileError,
    DeviceKernelError,
    ExternError,
    FallbackWarning,
    FusionError,
    InternalError,
    KnobError,
    KnobWarning,
    MissingCompilerError,
    ProbeWarning,
    SteeringWarning,
    TargetError,
    UnsupportedSystemError,
)
from smelt.errors.memory import (
    AliasError,
    ChangedError,
    DeviceError,
    DLPackError,
    DonatedError,
    OutArgumentError,
    OutOfMemory,
)
from smelt.errors.missing import MissingAttribute, nearest_hint
from smelt.errors.onnx import (
    OnnxExternalError,
    OnnxFileError,
    OnnxLimitError,
    OnnxTypeError,
)
from smelt.errors.page import Page, classes, page, pages
from smelt.errors.reasons import REASONS, Reason, reason
from smelt.errors.signals import raised_by_signal_handler
from smelt.errors.text import (
    BoundsError,
    ExprTextError,
    GraphTextError,
    KernelTextError,
    LoopPassError,
    LoopTextError,
    PlanTextError,
    TextError,
    VerifyError,
)
from smelt.errors.trace import (
    CarryError,
    GuardError,
    LeakError,
    LengthError,
    StaticArgError,
    StructureError,
    TracerError,
)
from smelt.errors.tree import (
    Coded,
    SmeltError,
    SmeltWarning,
    nearest,
    reason_of,
    warn_at_origin,
)

__all__ = [
    "REASONS",
    "AliasError",
    "ArgumentError",
    "AxisError",
    "BoundsError",
    "CacheError",
    "CacheWarning",
    "CaptureError",
    "CarryError",
    "ChangedError",
    "Coded",
    "CodegenError",
    "DLPackError",
    "DTypeError",
    "DeviceCompileError",
    "DeviceError",
    "DeviceForkError",
    "DeviceKernelError",
    "DeviceLayoutError",
    "DeviceMemoryError",
    "DeviceSizeError",
    "DonatedError",
    "DriverCallError",
    "ExprTextError",
    "ExternError",
    "FallbackWarning",
    "FusionError",
    "GradientError",
    "GraphTextError",
    "GuardError",
    "IndexRangeError",
    "InternalError",
    "KernelTextError",
    "KnobError",
    "KnobWarning",
    "LeakError",
    "LengthError",
    "LibraryError",
    "LoopPassError",
    "LoopTextError",
    "MissingCompilerError",
    "NoDriverError",
    "OldDriverError",
    "OnnxExternalError",
    "OnnxFileError",
    "OnnxLimitError",
    "OnnxTypeError",
    "OutArgumentError",
    "OutOfMemory",
    "OutsideError",
    "OverflowSizeError",
    "Page",
    "PlanTextError",
    "ProbeWarning",
    "ProgramFileError",
    "ProgramMachineError",
    "ProgramTrustError",
    "ProgramVersionError",
    "RangeError",
    "Reason",
    "SaveError",
    "ShapeError",
    "SmeltError",
    "SmeltWarning",
    "StaticArgError",
    "SteeringWarning",
    "StructureError",
    "TargetError",
    "TextError",
    "TracerError",
    "UnknownNameError",
    "UnsupportedError",
    "UnsupportedSystemError",
    "VerifyError",
    "classes",
    "escape_controls",
    "nearest",
    "page",
    "pages",
    "raised_by_signal_handler",
    "reason",
    "reason_of",
    "warn_at_origin",
]


def __getattr__(name: str) -> object:
    """Raise AttributeError with the nearest name."""
    raise MissingAttribute(
        "module 'smelt.errors'", lambda name: nearest_hint(name, __all__), name=name
    )
