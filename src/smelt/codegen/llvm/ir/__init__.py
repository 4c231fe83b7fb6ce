"""Write LLVM IR as text: types, constants, and a builder whose instructions are lines.

Names follow LLVM's own builder and `llvmlite.ir`, which keeps an object for each operand and spells
it when a module is printed, at a third of the compilation time.  Here a value is its type and its
name, an instruction its line, and each type a single object, compared by identity.  Only what Smelt
emits is supported.  LLVM parses the text and checks its other rules.

>>> from smelt.codegen.llvm import ir
>>> module = ir.Module("twice")
>>> i64 = ir.IntType(64)
>>> f = ir.Function(module, ir.FunctionType(i64, [i64]), "twice")
>>> b = ir.IRBuilder(f.append_basic_block("entry"))
>>> b.ret(b.mul(f.args[0], i64(2)))
>>> print(f)
define i64 @"twice"(i64 %.1) {
entry: %.2 = mul i64 %.1, 2 ret i64 %.2 }
"""

from __future__ import annotations

from smelt.codegen.llvm.ir.builder import IRBuilder, is_false, is_true
from smelt.codegen.llvm.ir.values import (
    ArrayType,
    BFloatType,
    Block,
    Constant,
    DoubleType,
    ExternalVariable,
    FloatType,
    Function,
    FunctionType,
    GlobalVariable,
    HalfType,
    InsertElement,
    Instruction,
    IntType,
    Module,
    Phi,
    PointerType,
    PrefixMask,
    ShuffleVector,
    Type,
    Undefined,
    Value,
    VectorType,
    VoidType,
)

__all__ = [
    "ArrayType", "BFloatType", "Block", "Constant", "DoubleType", "ExternalVariable", "FloatType",
    "Function", "FunctionType", "GlobalVariable", "HalfType", "IRBuilder", "InsertElement",
    "Instruction", "IntType", "Module", "Phi", "PointerType", "PrefixMask", "ShuffleVector", "Type",
    "Undefined", "Value", "VectorType", "VoidType", "is_false", "is_true",
]  # fmt: skip
