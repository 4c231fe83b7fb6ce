"""The writer of LLVM IR: LLVM parses its output, and it refuses mistakes."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.optimize import borrowed
from smelt.machine.target import Target
from smelt.packages.llvm import llvm, newpassmanagers

I1, I8, I32, I64 = (ir.IntType(n) for n in (1, 8, 32, 64))
F16, F32, F64 = ir.HalfType(), ir.FloatType(), ir.DoubleType()
PTR = ir.PointerType()
FOUR, FOUR_INTS = ir.VectorType(F32, 4), ir.VectorType(I32, 4)


def written(*kinds: Any) -> tuple[ir.Module, ir.IRBuilder, tuple[Any, ...]]:
    """A module, the builder in the first block of its function, and the function's arguments."""
    module = ir.Module("test")
    f = ir.Function(module, ir.FunctionType(ir.VoidType(), kinds), "f")
    return module, ir.IRBuilder(f.append_basic_block("entry")), f.args


def read(module: ir.Module) -> Any:
    """The module as LLVM has it.  Raises RuntimeError for what is not its language."""
    result = llvm.parse_assembly(str(module))
    result.verify()
    return result


BINARY = [
    ("add", I32),
    ("sub", I64),
    ("mul", FOUR_INTS),
    ("sdiv", I8),
    ("udiv", I32),
    ("srem", I32),
    ("urem", I32),
    ("fadd", F32),
    ("fsub", F64),
    ("fmul", FOUR),
    ("fdiv", F16),
    ("shl", I32),
    ("lshr", I32),
    ("ashr", FOUR_INTS),
    ("and_", I1),
    ("or_", I64),
    ("xor", FOUR_INTS),
]


@pytest.mark.parametrize(("name", "kind"), BINARY)
def test_what_takes_two_of_a_type_gives_that_type(name: str, kind: Any) -> None:
    module, b, (x, y, other) = written(kind, kind, PTR)
    assert getattr(b, name)(x, y).type is kind
    with pytest.raises(TypeError, match="types differ"):
        getattr(b, name)(x, other)
    b.ret_void()
    operation = name.rstrip("_")
    assert f"{operation} {kind} " in str(read(module))


@pytest.mark.parametrize(
    ("name", "kind"),
    [("not_", I1), ("not_", FOUR_INTS), ("neg", I64), ("neg", FOUR_INTS), ("fneg", FOUR)],
)
def test_what_takes_one(name: str, kind: Any) -> None:
    module, b, (x,) = written(kind)
    assert getattr(b, name)(x).type is kind
    b.ret_void()
    read(module)


@pytest.mark.parametrize("sign", ["==", "!=", "<", "<=", ">", ">="])
@pytest.mark.parametrize("kind", [I32, FOUR_INTS, F64, FOUR])
def test_comparisons_give_a_truth_for_each_lane(kind: Any, sign: str) -> None:
    module, b, (x, y) = written(kind, kind)
    integers = kind in (I32, FOUR_INTS)
    ways: list[Callable[..., Any]] = (
        [b.icmp_signed, b.icmp_unsigned] if integers else [b.fcmp_ordered, b.fcmp_unordered]
    )
    for way in ways:
        actual = way(sign, x, y)
        assert actual.type is (ir.VectorType(I1, 4) if isinstance(kind, ir.VectorType) else I1)
        assert b.select(actual, x, y).type is kind
    b.ret_void()
    read(module)


def test_conversions_to_the_own_type_are_no_instruction() -> None:
    module, b, (x, y, p) = written(I32, F32, PTR)
    assert b.trunc(x, I32) is x
    for actual, kind in (
        (b.trunc(x, I8), I8),
        (b.zext(x, I64), I64),
        (b.sext(x, I64), I64),
        (b.fptrunc(y, F16), F16),
        (b.fpext(y, F64), F64),
        (b.fptosi(y, I32), I32),
        (b.fptoui(y, I8), I8),
        (b.sitofp(x, F64), F64),
        (b.uitofp(x, F32), F32),
        (b.bitcast(y, I32), I32),
        (b.ptrtoint(p, I64), I64),
    ):
        assert actual.type is kind
    b.ret_void()
    read(module)


def test_memory_and_lanes() -> None:
    module, b, (p, n) = written(PTR, I64)
    array = b.alloca(FOUR, I64(3))
    x = b.load(array, typ=FOUR, align=16)
    stored = b.store(x, b.gep(p, [n], source_etype=F32), align=4)
    stored.set_metadata("nontemporal", module.add_metadata([I32(1)]))
    assert module.add_metadata([I32(1)]) == "!0"
    many = b.gep(p, [ir.Constant(ir.VectorType(I64, 4), [0, 2, 4, 6])], source_etype=F32)
    assert many.type is ir.VectorType(PTR, 4)
    one = b.extract_element(x, I32(2))
    with pytest.raises(TypeError):
        b.insert_element(x, n, I32(0))
    y = b.insert_element(x, one, I32(0))
    z = b.shuffle_vector(x, y, ir.Constant(ir.VectorType(I32, 2), [1, 7]))
    assert z.type is ir.VectorType(F32, 2)
    assert z.operands[1] is y and y.operands[1] is one
    b.fence("seq_cst")
    b.asm(ir.FunctionType(F32, [F32]), "", "=v,0", [one], True)
    b.ret_void()
    text = str(read(module))
    assert "!nontemporal" in text and "asm sideeffect" in text


def test_branches_meet_again_in_distinct_blocks() -> None:
    module, b, (x, yes) = written(I64, I1)
    with b.if_then(yes, likely=False):
        with b.if_else(yes) as (then, otherwise):
            with then:
                first, of_first = b.add(x, I64(1)), b.block
            with otherwise:
                second, of_second = b.add(x, I64(2)), b.block
        met = b.phi(I64)
        met.add_incoming(first, of_first)
        met.add_incoming(second, of_second)
        with pytest.raises(TypeError):
            met.add_incoming(yes, of_second)
        with b.goto_entry_block():
            early = b.alloca(I64)
        b.store(met, early)
    b.ret_void()
    with pytest.raises(ValueError, match="left already"):
        b.ret_void()
    text = str(read(module))
    assert text.index("alloca") < text.index("br i1")
    assert '!"branch_weights", i32 1, i32 99' in text
    names = [block.name for block in b.function.blocks]
    assert len(set(names)) == len(names)


def test_functions_tables_and_calls() -> None:
    module, b, (x,) = written(F64)
    sqrt = ir.Function(module, ir.FunctionType(F64, [F64]), "llvm.sqrt.f64")
    with pytest.raises(ValueError, match="has f already"):
        ir.Function(module, ir.FunctionType(ir.VoidType(), []), "f")
    with pytest.raises(TypeError):
        b.call(sqrt, [I64(1)])
    assert b.call(sqrt, [x]).type is F64
    table = ir.Constant(ir.ArrayType(I32, 3), (1, -2, 3))
    place = ir.GlobalVariable(module, "odd name", table, align=64)
    b.load(b.gep(place, [I64(1)], source_etype=I32), typ=I32)
    b.ret_void()
    b.function.attributes |= {"noinline", "cold"}
    b.function.linkage = "internal"
    actual = read(module)
    assert actual.get_function("f").linkage == llvm.Linkage.internal
    assert "[i32 1, i32 -2, i32 3], align 64" in str(actual)


def test_types_are_one_object_each_and_name_intrinsics() -> None:
    assert ir.VectorType(ir.FloatType(), 16) is ir.VectorType(ir.FloatType(), 16)
    assert ir.VectorType(ir.IntType(8), 4) is not ir.VectorType(ir.IntType(8), 8)
    assert {str(t): t.intrinsic_name for t in (I64, F16, F32, F64, FOUR, ir.BFloatType())} == {
        "i64": "i64",
        "half": "f16",
        "float": "f32",
        "double": "f64",
        "<4 x float>": "v4f32",
        "bfloat": "bf16",
    }


@given(st.floats(width=64), st.floats(width=32), st.integers(-(1 << 63), (1 << 63) - 1))
def test_constants_are_read_as_the_number_that_they_are(x: float, y: float, n: int) -> None:
    module, b, (p,) = written(PTR)
    for kind, value in ((F64, x), (F32, y), (I64, n), (FOUR, [y] * 4), (FOUR_INTS, None)):
        b.store(ir.Constant(kind, value), p, align=1)
    b.ret_void()
    read(module)
    assert struct.unpack("<d", struct.pack("<Q", int(F64(x).ref, 16)))[0] == x or x != x
    assert int(I64(n).ref) == n


def test_no_name_is_given_twice_however_it_is_spelled() -> None:
    module = ir.Module("test")
    f = ir.Function(module, ir.FunctionType(ir.VoidType(), []), "f")
    labels = ["if", "if.2", "if", "if", "if.2", "if.2.2", "if.3", "if"]
    inputs = [f.unique_name(name) for name in labels]
    assert len(set(inputs)) == len(inputs)
    assert inputs[:2] == labels[:2]


@pytest.mark.parametrize(
    "make", [lambda: ir.IntType(97), lambda: ir.VectorType(F64, 97), lambda: ir.ArrayType(I8, 97)]
)
def test_a_type_is_whole_before_others_see_it(
    make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = list[Any]()

    class Watched(dict[Any, Any]):
        """What notes what a type had when it was made known to all threads."""

        def setdefault(self, key: Any, default: Any = None, /) -> Any:
            kind: type = type(default)
            seen.extend(hasattr(default, x) for c in kind.__mro__[:2] for x in _slots(c))
            return super().setdefault(key, default)

    monkeypatch.setattr(type(make()), "_instances", Watched())
    make()
    assert seen and all(seen)


def _slots(kind: type) -> tuple[str, ...]:
    return tuple(getattr(kind, "__slots__", ()))


OPERATIONS = ("add", "sub", "mul", "udiv", "sdiv", "urem", "srem", "shl", "and_", "or_", "xor")
EDGES = (0, 1, -1, 2, 7, -8, 127, -128)


@pytest.mark.parametrize("name", OPERATIONS)
def test_folded_integers_are_llvms(name: str) -> None:
    """A constant is what LLVM makes of the instruction."""
    operation = name.rstrip("_")
    module, b, (p,) = written(PTR)
    stored = list[tuple[str, str]]()
    for first in EDGES:
        for second in EDGES:
            folded = getattr(b, name)(I8(first), I8(second))
            if isinstance(folded, ir.Constant):
                b.store(folded, p)
                stored.append((folded.ref, f"%r = {operation} i8 {first}, {second}"))
    b.ret_void()
    read(module)
    assert stored
    for folded, line in stored:
        assert llvm_constant(line) == int(folded), line


def llvm_constant(line: str) -> int:
    """The number that LLVM folds an instruction on i8 to."""
    text = f"define i8 @f() {{ {line}\n ret i8 %r }}"
    module = llvm.parse_assembly(text)
    passes = newpassmanagers.create_new_module_pass_manager()
    passes.add_instruction_combine_pass()
    with borrowed(Target.for_isa("avx512")) as backend:
        passes.run(module, backend.builder)
    (number,) = re.findall(r"ret i8 (-?\d+)", str(module))
    return int(number)


@pytest.mark.parametrize(("neutral", "name"), [(0, "add"), (1, "mul"), (0, "or_"), (-1, "and_")])
def test_neutral_and_absorbing_operands_need_no_instruction(neutral: int, name: str) -> None:
    _, b, (x, p) = written(I64, PTR)
    assert getattr(b, name)(x, I64(neutral)) is x
    assert getattr(b, name)(I64(neutral), x) is x
    assert b.mul(x, I64(0)).ref == b.and_(I64(0), x).ref == "0"
    assert b.gep(p, [I64(0)], source_etype=F32) is p
    assert b.select(I1(1), x, I64(3)) is x and b.select(I1(0), x, I64(3)).ref == "3"
    assert ir.is_true(b.icmp_signed("<", I64(-1), I64(0)))
    assert ir.is_false(b.not_(I1(1)))
    assert b.zext(I8(-1), I64).ref == "255" and b.trunc(I64(255), I8).ref == "-1"
    assert not b.block.instructions


def test_a_value_is_reused_where_it_dominates_alone() -> None:
    module, b, (x, yes) = written(I64, I1)
    total = b.add(x, I64(1))
    with b.if_else(yes) as (then, otherwise):
        with then:
            assert b.add(x, I64(1)) is total
            product = b.mul(x, x)
            assert b.mul(x, x) is product
        with otherwise:
            other = b.mul(x, x)
            assert other is not product
    assert b.mul(x, x) is not other
    with b.goto_entry_block():
        early = b.sub(x, I64(5))
    assert b.sub(x, I64(5)) is early
    loop, done = b.append_basic_block("loop"), b.append_basic_block("done")
    before = b.block
    b.branch(loop)
    b.position_at_end(loop)
    (position := b.phi(I64)).add_incoming(x, before)
    following = b.add(position, I64(1))
    position.add_incoming(following, b.block)
    b.cbranch(b.icmp_signed("<", following, early), loop, done)
    b.position_at_end(done)
    assert b.add(position, I64(1)) is following
    b.ret_void()
    read(module)


def test_a_block_that_was_numbered_is_not_entered_from_elsewhere() -> None:
    _, b, (x, yes) = written(I64, I1)
    inside, after = b.append_basic_block("inside"), b.append_basic_block("after")
    b.cbranch(yes, inside, after)
    b.position_at_end(after)
    b.add(x, I64(1))
    b.position_at_end(inside)
    b.branch(after)  # the first block still dominates it
    later = b.append_basic_block("later")
    b.position_at_end(later)
    b.add(x, I64(1))
    b.position_at_end(after)
    with pytest.raises(ValueError, match="numbered already"):
        b.branch(later)


def test_blocks_behind_a_constant_condition_are_left_out() -> None:
    module, b, (x,) = written(I64)
    with b.if_else(b.icmp_signed("<", I64(2), I64(1)), likely=True) as (then, otherwise):
        with then:
            first, of_first = b.mul(x, I64(3)), b.block
        with otherwise:
            second, of_second = b.mul(x, I64(5)), b.block
    met = b.phi(I64)
    met.add_incoming(first, of_first)
    met.add_incoming(second, of_second)
    b.add(met, met)
    b.ret_void()
    text = str(read(module))
    assert ", 5" in text and ", 3" not in text and "br i1" not in text
