"""LLVM's language as text: types, constants, and a builder whose instructions are lines at once.

The names are those of LLVM's own builder and of `llvmlite.ir`, which keeps an object for each
operand and spells it when a module is printed; that took a third of a compilation.  Here a value
is its type and its name, an instruction its line, and a type one object: types are compared by
identity.  Only what Smelt writes is here.  LLVM reads the text and checks the rest of its rules.

>>> from smelt.codegen.llvm import ir
>>> module = ir.Module("twice")
>>> i64 = ir.IntType(64)
>>> f = ir.Function(module, ir.FunctionType(i64, [i64]), "twice")
>>> b = ir.IRBuilder(f.append_basic_block("entry"))
>>> b.ret(b.mul(f.args[0], i64(2)))
>>> print(f)
define i64 @"twice"(i64 %.1) {
entry:
  %.2 = mul i64 %.1, 2
  ret i64 %.2
}
"""

from __future__ import annotations

from smelt.codegen.llvm.ir.builder import IRBuilder
from smelt.codegen.llvm.ir.types import (
    ArrayType,
    BFloatType,
    Constant,
    DoubleType,
    FloatType,
    FunctionType,
    HalfType,
    IntType,
    PointerType,
    Type,
    Undefined,
    Value,
    VectorType,
    VoidType,
)
from smelt.codegen.llvm.ir.values import (
    Block,
    Function,
    GlobalVariable,
    InsertElement,
    Instruction,
    Module,
    Phi,
    ShuffleVector,
)

__all__ = [
    "ArrayType", "BFloatType", "Block", "Constant", "DoubleType", "FloatType", "Function",
    "FunctionType", "GlobalVariable", "HalfType", "IRBuilder", "InsertElement", "Instruction",
    "IntType", "Module", "Phi", "PointerType", "ShuffleVector", "Type", "Undefined", "Value",
    "VectorType", "VoidType",
]  # fmt: skip
