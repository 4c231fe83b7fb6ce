"""Types, one object each, and constants in LLVM's spelling.

>>> VectorType(FloatType(), 8) is VectorType(FloatType(), 8)
True
>>> print(Constant(VectorType(IntType(32), 2), [3, -1]))
<2 x i32> <i32 3, i32 -1>
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Self


class Type:
    """A type: its spelling, how intrinsics' names spell it, and its zero."""

    __slots__ = ("intrinsic_name", "null", "text")
    text: str
    intrinsic_name: str
    null: str
    _known: dict[Any, Any]

    def __init_subclass__(cls) -> None:
        cls._known = {}

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<type {self.text}>"

    def __call__(self, value: Any) -> Constant:
        """A constant of this type."""
        return Constant(self, value)

    def __reduce__(self) -> Any:
        raise TypeError("types are one object each, and belong to their process")

    @classmethod
    def _one(
        cls, key: Any, text: str, intrinsic_name: str = "", null: str = "", **more: Any
    ) -> Self:
        made = object.__new__(cls)
        made.text, made.intrinsic_name, made.null = text, intrinsic_name, null
        for name, value in more.items():
            setattr(made, name, value)
        # Of two threads that make a type at once, both get the one that came first; it is whole
        # before the other can see it.
        return cls._known.setdefault(key, made)

    def spelled(self, value: Any) -> str:
        """A constant of this type as it is written behind the type."""
        raise TypeError(f"{self.text} has no constant {value!r}")


class VoidType(Type):
    """What a function gives that gives nothing."""

    __slots__ = ()

    def __new__(cls) -> Self:
        return cls._known.get(()) or cls._one((), "void")


class IntType(Type):
    """Integers of so many bits, without sign."""

    __slots__ = ("width",)
    width: int

    def __new__(cls, width: int) -> Self:
        found: Self | None = cls._known.get(width)
        return found or cls._one(width, f"i{width}", f"i{width}", "0", width=width)

    def spelled(self, value: Any) -> str:
        return str(int(value))


class _Real(Type):
    """Floats: LLVM reads the hexadecimal of the float64 of equal value for those up to 64 bits."""

    __slots__ = ()

    def spelled(self, value: Any) -> str:
        return f"0x{struct.unpack('<Q', struct.pack('<d', self.rounded(float(value))))[0]:016x}"

    def rounded(self, value: float) -> float:
        """The nearest that the type has."""
        return value


class HalfType(_Real):
    """IEEE 754's binary16."""

    __slots__ = ()

    def __new__(cls) -> Self:
        return cls._known.get(()) or cls._one((), "half", "f16", "0.0")

    def rounded(self, value: float) -> float:
        return struct.unpack("<e", struct.pack("<e", value))[0]


class BFloatType(Type):
    """float32's upper half, of which no constant is written."""

    __slots__ = ()

    def __new__(cls) -> Self:
        return cls._known.get(()) or cls._one((), "bfloat", "bf16", "0.0")


class FloatType(_Real):
    """IEEE 754's binary32."""

    __slots__ = ()

    def __new__(cls) -> Self:
        return cls._known.get(()) or cls._one((), "float", "f32", "0.0")

    def rounded(self, value: float) -> float:
        return struct.unpack("<f", struct.pack("<f", value))[0]


class DoubleType(_Real):
    """IEEE 754's binary64."""

    __slots__ = ()

    def __new__(cls) -> Self:
        return cls._known.get(()) or cls._one((), "double", "f64", "0.0")


class PointerType(Type):
    """An address, of whatever lies there."""

    __slots__ = ()

    def __new__(cls) -> Self:
        return cls._known.get(()) or cls._one((), "ptr", "p0", "null")


class _Many(Type):
    """So many of one type, in a register or in memory."""

    __slots__ = ("count", "element")
    count: int
    element: Any
    _spelling = ""

    def __new__(cls, element: Type, count: int) -> Self:
        found: Self | None = cls._known.get((element, count))
        if found is not None:
            return found
        text = cls._spelling.format(f"{count} x {element.text}")
        name = f"v{count}{element.intrinsic_name}"
        key = element, count
        return cls._one(key, text, name, "zeroinitializer", element=element, count=count)

    def spelled(self, value: Any) -> str:
        element: Type = self.element
        parts = ", ".join(f"{element.text} {element.spelled(x)}" for x in value)
        return self._spelling.format(parts)


class VectorType(_Many):
    """A register of so many lanes."""

    __slots__ = ()
    _spelling = "<{}>"


class ArrayType(_Many):
    """A table in memory."""

    __slots__ = ()
    _spelling = "[{}]"


class FunctionType:
    """What a function takes and gives."""

    __slots__ = ("args", "return_type")

    def __init__(self, return_type: Type, args: Sequence[Type]) -> None:
        self.return_type, self.args = return_type, tuple(args)


class Value:
    """What an operand is: a type, and a reference in LLVM's spelling."""

    __slots__ = ("ref", "type")

    def __init__(self, kind: Type, ref: str) -> None:
        self.type: Any = kind
        self.ref = ref

    def __str__(self) -> str:
        return f"{self.type.text} {self.ref}"


class _Undefined:
    """The value of a constant that has none."""


Undefined = _Undefined()


class Constant(Value):
    """A constant: of a vector a sequence of numbers; None for zero, `Undefined` for none."""

    __slots__ = ("constant",)

    def __init__(self, kind: Type, constant: Any) -> None:
        self.type = kind
        self.constant = constant
        if constant is None:
            self.ref = kind.null
        elif constant is Undefined:
            self.ref = "undef"
        else:
            self.ref = kind.spelled(constant)
