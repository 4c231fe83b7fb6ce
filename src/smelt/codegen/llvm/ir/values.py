"""Represent LLVM IR: types, constants, instructions, blocks, functions and modules.

Types are one object each; everything else is spelled when it is made.

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


# ---- values --------------------------------------------------------------------------------------


_POINTER = PointerType()


class Instruction(Value):
    """A line of text, and the value it defines."""

    __slots__ = ("line",)

    def __init__(self, kind: Type, ref: str, line: str) -> None:
        self.type = kind
        self.ref = ref
        self.line = line

    def set_metadata(self, name: str, node: str) -> None:
        """Attach a metadata node, as returned by `Module.add_metadata`."""
        self.line += f", !{name} {node}"

    def spelled_in(self, block: Block) -> str:
        """Return the line as it stands in its block."""
        return self.line


class PrefixMask(Value):
    """A mask of the first lanes: `lanes` of them (i64), at most all, and none if it is negative."""

    __slots__ = ("lanes",)

    def __init__(self, mask: Value, lanes: Value) -> None:
        super().__init__(mask.type, mask.ref)
        self.lanes = lanes


class InsertElement(Instruction):
    """`operands[0]` with lane `operands[2]` replaced by `operands[1]`."""

    __slots__ = ("operands",)
    operands: tuple[Value, Value, Value]

    def reading(self, vector: Value, value: Value, lane: Value) -> InsertElement:
        """Set the operands, and return the instruction."""
        self.operands = vector, value, lane
        return self


class ShuffleVector(Instruction):
    """Lanes of two vectors, `operands[:2]`, selected by the numbers `operands[2]`."""

    __slots__ = ("operands",)
    operands: tuple[Value, Value, Constant]

    def reading(self, a: Value, b: Value, lanes: Constant) -> ShuffleVector:
        """Set the operands, and return the instruction."""
        self.operands = a, b, lanes
        return self


class Phi(Instruction):
    """A value which depends on the predecessor block."""

    __slots__ = ("_incoming",)

    def __init__(self, kind: Type, ref: str, line: str) -> None:
        super().__init__(kind, ref, line)
        self._incoming: list[tuple[Value, Block]] = []

    def add_incoming(self, value: Value, block: Block) -> None:
        """Add the value for the predecessor `block`."""
        if value.type is not self.type:
            raise TypeError(f"a phi of {self.type} cannot take {value}")
        self._incoming.append((value, block))

    def spelled_in(self, block: Block) -> str:
        """Return the line with the values of those blocks that do branch to `block`."""
        values = [
            f"[{value.ref}, {before.ref}]"
            for value, before in self._incoming
            if block in before.targets and not before.is_dead
        ]
        return f"{self.line} {', '.join(values)}"


class Argument(Value):
    """A function argument and its attributes."""

    __slots__ = ("attributes",)

    def __init__(self, kind: Type, ref: str) -> None:
        super().__init__(kind, ref)
        self.attributes: list[str] = []

    def add_attribute(self, name: str) -> None:
        """Add an LLVM attribute, such as "noalias"."""
        self.attributes.append(name)

    @property
    def declaration(self) -> str:
        """Return the argument as the head of its function spells it."""
        return " ".join((self.type.text, *self.attributes, self.ref))


class Block:
    """A basic block.

    Its dominators follow from the blocks that branch to it when they are first asked for. Later
    only blocks that have the same dominators, such as the ends of its loop, may branch to it.
    """

    __slots__ = (
        "_dominators",
        "_predecessors",
        "function",
        "instructions",
        "name",
        "ref",
        "targets",
        "terminator",
    )

    def __init__(self, function: Function, name: str) -> None:
        self.function, self.name = function, name
        self.ref = f"%{name}"
        self.instructions: list[Instruction] = []
        self.terminator: Instruction | None = None
        self.targets: Sequence[Block] = ()
        """Blocks that the terminator may branch to."""
        self._predecessors: list[Block] = []
        self._dominators: frozenset[Block] | None = None

    @property
    def dominators(self) -> frozenset[Block]:
        """Return the blocks that every path to the end of this one passes, with itself."""
        if self._dominators is None:
            above = [block.dominators for block in self._predecessors]
            self._dominators = frozenset((self,)).union(
                frozenset.intersection(*above) if above else ()
            )
        return self._dominators

    @property
    def is_dead(self) -> bool:
        """Return whether no path leads here from the first block."""
        return not self._predecessors and self is not self.function.blocks[0]

    def terminate(self, terminator: Instruction, targets: Sequence[Block]) -> Instruction:
        """Set the instruction that leaves the block for `targets`, and return it.

        Raises ValueError if a target's values were numbered by dominators that it then loses.
        """
        self.terminator, self.targets = terminator, targets
        dominators = self.dominators
        for target in targets if not self.is_dead else ():
            target.enter_from(self, dominators)
        return terminator

    def enter_from(self, block: Block, dominators: frozenset[Block]) -> None:
        """Add a predecessor; raises ValueError if values were numbered without it."""
        if self._dominators is None:
            self._predecessors.append(block)
        elif self.is_dead or not self._dominators - {self} <= dominators:
            raise ValueError(f"{block.name} branches to {self.name}, which is numbered already")


class Function(Value):
    """A function of a module; a declaration as long as it has no block."""

    __slots__ = (
        "_names",
        "args",
        "attributes",
        "blocks",
        "count",
        "function_type",
        "linkage",
        "module",
        "name",
        "numbered",
    )

    def __init__(self, module: Module, kind: FunctionType, name: str, linkage: str = "") -> None:
        super().__init__(_POINTER, f'@"{name}"')
        self.module, self.function_type, self.name = module, kind, name
        self.linkage = linkage
        self.attributes: set[str] = set()
        self.blocks: list[Block] = []
        self.args = tuple(Argument(t, f"%.{k}") for k, t in enumerate(kind.args, 1))
        self.count = len(self.args)
        """Values named so far."""
        self.numbered: dict[str, tuple[Instruction, Block]] = {}
        """Text of an instruction without effects -> its latest value, and the block it is in."""
        self._names: dict[str, int] = {}
        module.add(self)

    def new_number(self) -> int:
        """Return the number of one more value."""
        self.count += 1
        return self.count

    def append_basic_block(self, name: str = "block") -> Block:
        """Append a block to the function."""
        block = Block(self, self.unique_name(name))
        self.blocks.append(block)
        return block

    def unique_name(self, name: str) -> str:
        """Return `name`, made unique in the function by a number."""
        unique = name
        while unique in self._names:
            self._names[name] += 1
            unique = f"{name}.{self._names[name]}"
        self._names[unique] = 1
        return unique

    def __str__(self) -> str:
        kind = self.function_type
        head = ["define" if self.blocks else "declare", self.linkage, kind.return_type.text]
        args = ", ".join(a.declaration for a in self.args)
        attributes = "".join(f" {a}" for a in sorted(self.attributes))
        text = f"{' '.join(filter(None, head))} {self.ref}({args}){attributes}"
        if not self.blocks:
            return text
        lines = [text + " {"]
        for block in self.blocks:
            if not block.is_dead:
                lines.append(f"{block.name}:")
                lines += ["  " + i.spelled_in(block) for i in block.instructions]
        lines.append("}")
        return "\n".join(lines)


class GlobalVariable(Value):
    """A private constant table of the module, aligned to `align` bytes."""

    __slots__ = ("align", "initializer", "name")

    def __init__(self, module: Module, name: str, initializer: Constant, *, align: int) -> None:
        super().__init__(_POINTER, f'@"{name}"')
        self.name, self.initializer, self.align = name, initializer, align
        module.add(self)

    def __str__(self) -> str:
        return f"{self.ref} = private constant {self.initializer}, align {self.align}"


class ExternalVariable(Value):
    """Memory of the process by a name that the loader resolves."""

    __slots__ = ("name",)

    def __init__(self, module: Module, name: str) -> None:
        super().__init__(_POINTER, f'@"{name}"')
        self.name = name
        module.add(self)

    def __str__(self) -> str:
        return f"{self.ref} = external global i64"


class Module:
    """Functions and tables by name, and metadata nodes."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.globals: dict[str, Any] = {}
        self._metadata: dict[str, str] = {}

    def add(self, symbol: Function | GlobalVariable | ExternalVariable) -> None:
        """Add a function or table; raises ValueError for a duplicate name."""
        if symbol.name in self.globals:
            raise ValueError(f"the module has {symbol.name} already")
        self.globals[symbol.name] = symbol

    def add_metadata(self, operands: Sequence[Value | str]) -> str:
        """Return a metadata node of values and strings, the same one for equal operands."""
        text = ", ".join(f'!"{x}"' if isinstance(x, str) else str(x) for x in operands)
        return self._metadata.setdefault(text, f"!{len(self._metadata)}")

    def __str__(self) -> str:
        lines = [f"; ModuleID = {self.name!r}", *map(str, self.globals.values())]
        lines += [f"{name} = !{{ {text} }}" for text, name in self._metadata.items()]
        return "\n".join(lines) + "\n"
