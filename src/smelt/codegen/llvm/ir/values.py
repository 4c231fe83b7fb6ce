"""Instructions, blocks, functions and modules: lines in the order in which LLVM reads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from smelt.codegen.llvm.ir.types import Constant, FunctionType, PointerType, Type, Value

_POINTER = PointerType()


class Instruction(Value):
    """A line, and the value that it gives."""

    __slots__ = ("line",)

    def __init__(self, kind: Type, ref: str, line: str) -> None:
        self.type = kind
        self.ref = ref
        self.line = line

    def set_metadata(self, name: str, node: str) -> None:
        """Attaches a node of the module's metadata: what `Module.add_metadata` gave."""
        self.line += f", !{name} {node}"


class InsertElement(Instruction):
    """A vector with one lane replaced, by `operands[1]` at `operands[2]`."""

    __slots__ = ("operands",)
    operands: tuple[Value, Value, Value]


class ShuffleVector(Instruction):
    """Lanes of two vectors, `operands[:2]`, by the numbers of `operands[2]`."""

    __slots__ = ("operands",)
    operands: tuple[Value, Value, Constant]


class Phi(Instruction):
    """The value that the block which was left last has for this one."""

    __slots__ = ("_many",)

    def __init__(self, kind: Type, ref: str, line: str) -> None:
        super().__init__(kind, ref, line)
        self._many = False

    def add_incoming(self, value: Value, block: Block) -> None:
        """The value that counts when one comes from `block`."""
        if value.type is not self.type:
            raise TypeError(f"a phi of {self.type} cannot take {value}")
        self.line += f"{',' if self._many else ''} [{value.ref}, {block.ref}]"
        self._many = True


class Argument(Value):
    """A function's argument and its attributes."""

    __slots__ = ("attributes",)

    def __init__(self, kind: Type, ref: str) -> None:
        super().__init__(kind, ref)
        self.attributes: list[str] = []

    def add_attribute(self, name: str) -> None:
        """Promises something about the argument, in LLVM's words."""
        self.attributes.append(name)

    def __str__(self) -> str:
        return " ".join((self.type.text, *self.attributes, self.ref))


class Block:
    """Instructions that run one after another."""

    __slots__ = ("function", "instructions", "name", "ref", "terminator")

    def __init__(self, function: Function, name: str) -> None:
        self.function, self.name = function, name
        self.ref = f"%{name}"
        self.instructions: list[Instruction] = []
        self.terminator: Instruction | None = None


class Function(Value):
    """A function of a module; declared only, as long as it has no block."""

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

    def __init__(self, module: Module, kind: FunctionType, name: str) -> None:
        super().__init__(_POINTER, f'@"{name}"')
        self.module, self.function_type, self.name = module, kind, name
        self.linkage = ""
        self.attributes: set[str] = set()
        self.blocks: list[Block] = []
        self.args = tuple(Argument(t, f"%.{k}") for k, t in enumerate(kind.args, 1))
        self.count = len(self.args)
        """Values that have been named by their number."""
        self._names: dict[str, int] = {}
        module.add(self)

    def append_basic_block(self, name: str = "block") -> Block:
        """A block behind all others."""
        block = Block(self, self.own(name))
        self.blocks.append(block)
        return block

    def own(self, name: str) -> str:
        """A name that no other value or block of the function has: this one, or with a number."""
        made = name
        while made in self._names:
            self._names[name] += 1
            made = f"{name}.{self._names[name]}"
        self._names[made] = 1
        return made

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
    """A table of the module, which nobody writes to or sees from outside, at a multiple of `align`
    bytes."""

    __slots__ = ("align", "initializer", "name")

    def __init__(self, module: Module, name: str, initializer: Constant, *, align: int) -> None:
        super().__init__(_POINTER, f'@"{name}"')
        self.name, self.initializer, self.align = name, initializer, align
        module.add(self)

    def __str__(self) -> str:
        return f"{self.ref} = private constant {self.initializer}, align {self.align}"


class Module:
    """Functions and tables by name, and nodes of metadata."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.globals: dict[str, Any] = {}
        self._metadata: dict[str, str] = {}

    def add(self, made: Function | GlobalVariable) -> None:
        """Takes up a function or a table.  Raises ValueError for a name that is taken."""
        if made.name in self.globals:
            raise ValueError(f"the module has {made.name} already")
        self.globals[made.name] = made

    def add_metadata(self, operands: Sequence[Value | str]) -> str:
        """A node of values and words; the same one for the same."""
        text = ", ".join(f'!"{x}"' if isinstance(x, str) else str(x) for x in operands)
        return self._metadata.setdefault(text, f"!{len(self._metadata)}")

    def __str__(self) -> str:
        lines = [f"; ModuleID = {self.name!r}", *map(str, self.globals.values())]
        lines += [f"{name} = !{{ {text} }}" for text, name in self._metadata.items()]
        return "\n".join(lines) + "\n"
