"""Represent LLVM types, one object each, and constants in LLVM's spelling.

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
    """A type: its spelling, its spelling in intrinsics' names, and its zero."""

    __slots__ = ("intrinsic_name", "null", "text")
    text: str
    intrinsic_name: str
    null: str
    _instances: dict[Any, Any]

    def __init_subclass__(cls) -> None:
        cls._instances = {}

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<type {self.text}>"

    def __call__(self, value: Any) -> Constant:
        """Return a constant of this type."""
        return Constant(self, value)

    def __reduce__(self) -> Any:
        raise TypeError("types are one object each, and belong to their process")

    @classmethod
    def _intern(
        cls, key: Any, text: str, intrinsic_name: str = "", null: str = "", **more: Any
    ) -> Self:
        instance = object.__new__(cls)
        fields = {"text": text, "intrinsic_name": intrinsic_name, "null": null, **more}
        for name, value in fields.items():
            setattr(instance, name, value)
        # If two threads create a type at once, both get the first one, which is complete by then.
        return cls._instances.setdefault(key, instance)

    def spell(self, value: Any) -> str:
        """Return the text of a constant of this type, as written after the type."""
        raise TypeError(f"{self.text} has no constant {value!r}")


class VoidType(Type):
    """Return type of functions without a result."""

    __slots__ = ()

    def __new__(cls) -> Self:
        return cls._instances.get(()) or cls._intern((), "void")


class IntType(Type):
    """Integers of `width` bits, without sign."""

    __slots__ = ("width",)
    width: int

    def __new__(cls, width: int) -> Self:
        existing: Self | None = cls._instances.get(width)
        return existing or cls._intern(width, f"i{width}", f"i{width}", "0", width=width)

    def spell(self, value: Any) -> str:
        return str(int(value))


class _FloatBase(Type):
    """Floats: constants are written as the hexadecimal float64 of equal value."""

    __slots__ = ()

    def spell(self, value: Any) -> str:
        return f"0x{struct.unpack('<Q', struct.pack('<d', self.rounded(float(value))))[0]:016x}"

    def rounded(self, value: float) -> float:
        """Round a number to the type."""
        return value


class HalfType(_FloatBase):
    """IEEE 754 binary16."""

    __slots__ = ()

    def __new__(cls) -> Self:
        return cls._instances.get(()) or cls._intern((), "half", "f16", "0.0")

    def rounded(self, value: float) -> float:
        return struct.unpack("<e", struct.pack("<e", value))[0]


class BFloatType(Type):
    """bfloat16, the upper half of float32; constants are not supported."""

    __slots__ = ()

    def __new__(cls) -> Self:
        return cls._instances.get(()) or cls._intern((), "bfloat", "bf16", "0.0")


class FloatType(_FloatBase):
    """IEEE 754 binary32."""

    __slots__ = ()

    def __new__(cls) -> Self:
        return cls._instances.get(()) or cls._intern((), "float", "f32", "0.0")

    def rounded(self, value: float) -> float:
        return struct.unpack("<f", struct.pack("<f", value))[0]


class DoubleType(_FloatBase):
    """IEEE 754 binary64."""

    __slots__ = ()

    def __new__(cls) -> Self:
        return cls._instances.get(()) or cls._intern((), "double", "f64", "0.0")


class PointerType(Type):
    """An opaque pointer."""

    __slots__ = ()

    def __new__(cls) -> Self:
        return cls._instances.get(()) or cls._intern((), "ptr", "p0", "null")


class _Aggregate(Type):
    """Several elements of one type, in a register or in memory."""

    __slots__ = ("count", "element")
    count: int
    element: Any
    _spelling = ""

    def __new__(cls, element: Type, count: int) -> Self:
        existing: Self | None = cls._instances.get((element, count))
        if existing is not None:
            return existing
        text = cls._spelling.format(f"{count} x {element.text}")
        name = f"v{count}{element.intrinsic_name}"
        key = element, count
        return cls._intern(key, text, name, "zeroinitializer", element=element, count=count)

    def spell(self, value: Any) -> str:
        element: Type = self.element
        parts = ", ".join(f"{element.text} {element.spell(x)}" for x in value)
        return self._spelling.format(parts)


class VectorType(_Aggregate):
    """A vector of `count` lanes."""

    __slots__ = ()
    _spelling = "<{}>"


class ArrayType(_Aggregate):
    """An array in memory."""

    __slots__ = ()
    _spelling = "[{}]"


class FunctionType:
    """Return and argument types of a function."""

    __slots__ = ("args", "return_type")

    def __init__(self, return_type: Type, args: Sequence[Type]) -> None:
        self.return_type, self.args = return_type, tuple(args)


class Value:
    """An operand: a type, and a reference in LLVM's spelling."""

    __slots__ = ("ref", "type")

    def __init__(self, kind: Type, ref: str) -> None:
        self.type: Any = kind
        self.ref = ref

    def __str__(self) -> str:
        return f"{self.type.text} {self.ref}"


class _Undefined:
    """The value of an undefined constant."""


Undefined = _Undefined()


class Constant(Value):
    """A constant; vectors take a sequence, None means zero, `Undefined` undef."""

    __slots__ = ("constant",)

    def __init__(self, kind: Type, constant: Any) -> None:
        self.type = kind
        self.constant = constant
        if constant is None:
            self.ref = kind.null
        elif constant is Undefined:
            self.ref = "undef"
        else:
            self.ref = kind.spell(constant)
