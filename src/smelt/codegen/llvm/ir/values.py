"""Represent instructions, blocks, functions and modules as lines of LLVM IR."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from smelt.codegen.llvm.ir.types import Constant, FunctionType, PointerType, Type, Value

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


class PrefixMask(Value):
    """A mask of the first lanes: `lanes` of them (i64), or all if there are fewer."""

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

    __slots__ = ("_many",)

    def __init__(self, kind: Type, ref: str, line: str) -> None:
        super().__init__(kind, ref, line)
        self._many = False

    def add_incoming(self, value: Value, block: Block) -> None:
        """Add the value for the predecessor `block`."""
        if value.type is not self.type:
            raise TypeError(f"a phi of {self.type} cannot take {value}")
        self.line += f"{',' if self._many else ''} [{value.ref}, {block.ref}]"
        self._many = True


class Argument(Value):
    """A function argument and its attributes."""

    __slots__ = ("attributes",)

    def __init__(self, kind: Type, ref: str) -> None:
        super().__init__(kind, ref)
        self.attributes: list[str] = []

    def add_attribute(self, name: str) -> None:
        """Add an LLVM attribute, such as "noalias"."""
        self.attributes.append(name)

    def __str__(self) -> str:
        return " ".join((self.type.text, *self.attributes, self.ref))


class Block:
    """A basic block."""

    __slots__ = ("function", "instructions", "name", "ref", "terminator")

    def __init__(self, function: Function, name: str) -> None:
        self.function, self.name = function, name
        self.ref = f"%{name}"
        self.instructions: list[Instruction] = []
        self.terminator: Instruction | None = None

    def terminate(self, terminator: Instruction) -> Instruction:
        """Set the instruction that leaves the block, and return it."""
        self.terminator = terminator
        return terminator


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
    )

    def __init__(self, module: Module, kind: FunctionType, name: str, linkage: str = "") -> None:
        super().__init__(_POINTER, f'@"{name}"')
        self.module, self.function_type, self.name = module, kind, name
        self.linkage = linkage
        self.attributes: set[str] = set()
        self.blocks: list[Block] = []
        self.args = tuple(Argument(t, f"%.{k}") for k, t in enumerate(kind.args, 1))
        self.count = len(self.args)
        """Values numbered so far."""
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
        args = ", ".join(map(str, self.args))
        attributes = "".join(f" {a}" for a in sorted(self.attributes))
        text = f"{' '.join(filter(None, head))} {self.ref}({args}){attributes}"
        if not self.blocks:
            return text
        lines = [text + " {"]
        for block in self.blocks:
            lines.append(f"{block.name}:")
            lines += ["  " + i.line for i in block.instructions]
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
