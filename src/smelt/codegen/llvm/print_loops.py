"""Print statements of the loop language as LLVM: what is written there is what runs.

Every statement is printed once, where it stands; values are trees.  Loops of vectors, their tails
and offsets that do not change in a loop are the passes' business (`smelt.loop.passes`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from smelt.codegen.llvm import ir
from smelt.codegen.llvm.access.interleaved_loads import load_strided
from smelt.codegen.llvm.access.memory import (
    element_address,
    gather,
    load_scalar,
    load_vector,
    prefetch,
    scatter,
    store_interleaved,
    store_scalar,
    store_vector,
)
from smelt.codegen.llvm.access.permute_gather import (
    index_lanes,
    periodic_mask,
    periodic_truths,
    read_periodic,
)
from smelt.codegen.llvm.access.prefetch import PREFETCH_BYTES
from smelt.codegen.llvm.instructions.dot_product import pack_pairs
from smelt.codegen.llvm.instructions.indexing import (
    I64,
    IndexEmitter,
    LaneAxis,
    iota,
    lanes_before_end,
    number,
    opaque,
    short_lanes_before_end,
    splat,
)
from smelt.codegen.llvm.instructions.machine import LLVMMachine, emit
from smelt.codegen.llvm.instructions.reductions import State, first_lane, reduce_halves, scan_lanes
from smelt.codegen.llvm.instructions.registers import lane_numbers, pick_from
from smelt.codegen.llvm.instructions.transpose import transpose
from smelt.codegen.llvm.loopir.periodic_index import PeriodicIndex, find_period
from smelt.codegen.llvm.loops.poll import leave_if_given_up
from smelt.codegen.llvm.nests.environment import Lanes
from smelt.errors import InternalError
from smelt.loop import ir as loop
from smelt.loop.ir import CACHE_LINE
from smelt.loop.passes.align_stores import skew_of
from smelt.loop.passes.group_loads import FARTHEST_STEP
from smelt.loop.reduce_rows import reduce_rows
from smelt.loop.text import statement_text, value_text
from smelt.loop.walk import is_short, places, reads, values
from smelt.loop.walk import loads as loads_of
from smelt.machine.target import Target
from smelt.ops.cast import cast
from smelt.ops.combine import BOTH, COMBINES, Combine
from smelt.ops.scalar import SCALARS
from smelt.types.dtype import DType, bool_, f64, i32, i64
from smelt.types.expr import Atom, Expr, Index, atoms, coefficient

Value = ir.Value
BitsOf = Callable[[LLVMMachine, Value], Value]
I1 = ir.IntType(1)


class Typed(NamedTuple):
    """A register and the element type that it holds."""

    value: Value
    dtype: DType

    @property
    def lanes(self) -> int:
        """Return the number of lanes: 1 for a scalar."""
        kind = self.value.type
        return kind.count if isinstance(kind, ir.VectorType) else 1


class LoopPrinter:
    """Prints statements at a builder's position; every name that they read has a register."""

    def __init__(
        self,
        b: ir.IRBuilder,
        target: Target,
        above: Mapping[Atom, Value] | None = None,
        done: ir.Block | None = None,
    ) -> None:
        self.b, self.target, self.above, self.done = b, target, above, done
        """`above` has quotients and extremes of sizes that are known; at `done` a call returns."""
        self.addresses: dict[str, Value] = {}
        self.dtypes: dict[str, DType] = {}
        self.lengths: dict[str, int] = {}
        self.bits_of: dict[str, BitsOf] = {}
        """How arrays of bits hold registers."""
        self.names: dict[str, Typed] = {}
        """Lets, carries, loop variables, sizes and numbers in scope."""
        self.registers: dict[str, Typed] = {}
        """Arrays of one element that registers hold."""
        self.tiles: dict[str, list[Typed]] = {}
        """Columns of transposed tiles, which are read one by one."""
        self.masks: dict[loop.Prefix, Value] = {}
        """Masks of the current block."""
        self.prefetched: set[tuple[str, int]] = set()
        """Arrays whose next lines the current block prefetches, each from a lane on."""

    def add_array(self, name: str, address: Value, dtype: DType, elements: int = 0) -> None:
        """Say where an array is, its element type, and its constant length or 0."""
        self.addresses[name], self.dtypes[name], self.lengths[name] = address, dtype, elements
        self.registers.pop(name, None)

    def add_bits(
        self,
        name: str,
        address: Value,
        dtype: DType,
        bits_of: Callable[[LLVMMachine, Value], Value],
    ) -> None:
        """Say where an array of type `dtype` is that holds the bits of numbers."""
        self.add_array(name, address, dtype)
        self.bits_of[name] = bits_of

    def add_register(self, name: str, value: Value, dtype: DType) -> None:
        """Say which register holds an array of one element."""
        self.registers[name] = Typed(value, dtype)

    def begin(self, func: loop.Func) -> None:
        """Begin a function whose arrays, sizes and numbers are bound, but for skews of arrays."""
        for p in func.params:
            if (name := skew_of(p.name)) in func.numbers:
                address = self.b.ptrtoint(self.addresses[p.name], I64)
                self.bind(name, self.b.and_(address, number(CACHE_LINE - 1)))

    def bind(self, name: str, value: Value, dtype: DType = i64) -> None:
        """Give a name its register."""
        self.names[name] = Typed(value, dtype)

    def resume(self, names: Mapping[str, Typed]) -> None:
        """Go on where only these names are in scope."""
        self.names = dict(names)

    # ---- statements ----------------------------------------------------------------------------

    def block(self, body: Sequence[loop.Statement]) -> dict[str, Typed]:
        """Print statements; return the next values of carries."""
        following: dict[str, Typed] = {}
        outer, self.masks = self.masks, {}
        around, self.prefetched = self.prefetched, set()
        for s in body:
            match s:
                case loop.Let(name, loop.Shuffle(args, "transpose")):
                    rows = [self.value(x) for x in args]
                    columns = transpose(self.b, [x.value for x in rows])
                    self.tiles[name] = [Typed(x, rows[0].dtype) for x in columns]
                case loop.Let(name, value):
                    self.names[name] = self.value(value)
                case loop.Next(name, value):
                    following[name] = self.value(value)
                case loop.Store():
                    self._store(s)
                case loop.For():
                    self._for(s)
                case loop.If(cond, then, ()):
                    with self.b.if_then(self.value(cond).value):
                        self.block(then)
                case loop.If():
                    self._if(s)
                case loop.Alloc(name, dtype, int(elements)):
                    self._alloc(name, dtype.compute, elements)
                case loop.Prefetch(place, level, write):
                    address = self._address(place)
                    prefetch(self.b, address, near=level == 1, written=write)
                case loop.Poll() if self.done is not None:
                    leave_if_given_up(self.b, self.done)
                case _:
                    raise InternalError(f"{statement_text(s)} is not printed yet")
        self.masks, self.prefetched = outer, around
        return following

    def _if(self, s: loop.If) -> None:
        """Print both sides of a branch, and merge its results."""
        dtypes: dict[str, DType] = {}

        def side(body: Sequence[loop.Statement]) -> list[Value]:
            values = self.block(body)
            dtypes.update({name: values[name].dtype for name in s.results})
            return [values[name].value for name in s.results]

        cond, likely = self.value(s.cond).value, False if isinstance(s.cond, loop.Across) else None
        kept = all(isinstance(t, loop.Next) and _is_at_hand(t.value) for t in s.other)
        other = side(s.other) if kept else lambda: side(s.other)
        merged = self.b.either(cond, lambda: side(s.then), other, likely)
        for name, value in zip(s.results, merged, strict=True):
            self.names[name] = Typed(value, dtypes[name])

    def _for(self, s: loop.For) -> None:
        b = self.b
        low, high, step = self.index(s.low), self.index(s.high), self.index(s.step)
        starts = [self.value(c.init) for c in s.carry]
        self._broadcast(s.body)
        inside, done = b.append_basic_block("loop"), b.append_basic_block("next")
        before = b.block
        b.cbranch(b.icmp_signed("<", low, high), inside, done)
        b.position_at_end(inside)
        (position := b.phi(I64)).add_incoming(low, before)
        self.names[s.var] = Typed(position, i64)
        carried = [b.phi(start.value.type) for start in starts]
        for c, phi, start in zip(s.carry, carried, starts, strict=True):
            phi.add_incoming(start.value, before)
            self.names[c.name] = Typed(phi, start.dtype)
        following = self.block(s.body)
        after = b.add(position, step)
        latch = b.block
        position.add_incoming(after, latch)
        for c, phi in zip(s.carry, carried, strict=True):
            phi.add_incoming(following[c.name].value, latch)
        b.cbranch(b.icmp_signed("<", after, high), inside, done)
        b.position_at_end(done)
        for c, start in zip(s.carry, starts, strict=True):
            result = b.phi(start.value.type)
            result.add_incoming(start.value, before)
            result.add_incoming(following[c.name].value, latch)
            self.names[c.name] = Typed(result, start.dtype)

    def _broadcast(self, body: Sequence[loop.Statement]) -> None:
        """Broadcast the scalars that a loop's vectors read before it, for nothing moves them later.

        The builder returns these vectors where the loop broadcasts them again.
        """
        scalars = {n for n, x in self.names.items() if x.dtype != i64 and x.lanes == 1}
        read = sorted(scalars & reads(*body)) if scalars else ()
        if not read:
            return
        loads = (v for s in body for x in values(s) for v in loads_of(x))
        written = (p for s in body for p in places(s))
        widths = {p.lanes for p in (*(v.place for v in loads), *written) if p.lanes > 1}
        for name in read:
            for lanes in widths:
                splat(self.b, self.names[name].value, lanes)

    def _store(self, s: loop.Store) -> None:
        """Print a store: of one element, a vector, or lanes that are apart."""
        place, dtype = s.place, self.dtypes[s.place.buffer]
        if isinstance(s.value, loop.Shuffle) and s.value.pattern == "interleave" and not s.join:
            self._store_interleaved(place, s.value.args)
            return
        joined = loop.Apply(s.join, (s.value, loop.Load(place))) if s.join else s.value
        value, m = self.value(joined), self.machine(place.lanes)
        raw = value.value if place.lanes == 1 else splat(self.b, value.value, place.lanes)
        if place.buffer in self.bits_of:
            raw = self.bits_of[place.buffer](m, raw)
        mask = self._mask(place)
        if place.lanes == 1:
            store_scalar(m, self._address(place), raw, dtype, mask)
        elif place.stride == 1 and isinstance(place.at, Index):
            store_vector(m, self._address(place), raw, dtype, mask, bypass=s.nontemporal)
        else:
            scatter(m, self.addresses[place.buffer], self._offsets(place), raw, dtype, mask)

    def _store_interleaved(self, place: loop.Place, args: Sequence[loop.Value]) -> None:
        columns = [self.value(x) for x in args]
        mask = place.mask
        if mask is not None:
            assert isinstance(mask, loop.Shuffle)  # of the mask of each column
            mask = self.value(mask.args[0]).value
        store_interleaved(
            self.machine(columns[0].lanes),
            self._address(loop.Place(place.buffer, place.at)),
            [x.value for x in columns],
            self.dtypes[place.buffer],
            mask,
            self.target.vector_bytes,
        )

    def _alloc(self, name: str, dtype: DType, elements: int) -> None:
        """Give an array of constant length a place on the stack, at cache lines."""
        kind = ir.VectorType(ir.IntType(8), CACHE_LINE)  # a register's truth values are bits
        lines = -(-elements * dtype.itemsize // CACHE_LINE)
        with self.b.goto_block(self.b.function.blocks[0], first=True):  # divisions split the block
            self.add_array(name, self.b.alloca(kind, size=ir.IntType(32)(lines)), dtype)

    # ---- values --------------------------------------------------------------------------------

    def machine(self, lanes: int) -> LLVMMachine:
        """Return the machine for scalars, or vectors of some lanes."""
        return LLVMMachine(self.b, lanes if lanes > 1 else None, self.target)

    def index(self, e: Index) -> Value:
        """Print an index expression."""
        return IndexEmitter(self.b, self._leaf, self.above).emit(e)

    def _leaf(self, atom: Atom) -> Value:
        return self.names[atom.name].value

    def value(self, v: loop.Value) -> Typed:
        """Print a value."""
        match v:
            case loop.Ref(name):
                return self.names[name]
            case loop.Apply(op, args):
                special = self._special(v) if op in ("add", "fma", "le") else None
                return special or self._apply(op, [self.value(a) for a in args])
            case loop.Load():
                return self._load(v)
            case loop.Const(value, dtype) | loop.IndexValue(int(value), dtype):
                return Typed(self.machine(1).const(dtype.compute, value), dtype.compute)
            case loop.IndexValue(index, dtype):
                m, at = self.machine(1), self.index(index)
                return Typed(cast(m, at, i64, dtype), dtype)
            case loop.Shuffle():
                return self._shuffle(v)
            case loop.Cast(arg, dtype):
                x = self.value(arg)
                return Typed(cast(self.machine(x.lanes), x.value, x.dtype, dtype), dtype.compute)
            case loop.Lane(lanes):
                return Typed(iota(lanes), i64)
            case loop.LaneIndex():
                return Typed(self._lane_index(v), i64)
            case loop.Prefix():
                return Typed(self._prefix(v), bool_)
            case loop.Splat(arg, lanes):
                x = self.value(arg)
                return Typed(splat(self.b, x.value, lanes), x.dtype)
            case loop.Across(loop.ANY, (arg,)):
                x = self.value(arg)
                return Typed(self.machine(x.lanes).any(x.value), bool_)
            case loop.Across(_, (mask, loop.Apply("add", (first, loop.Lane(lanes))))):
                x, at = self.value(mask), self.value(first)  # the first lane of those that are set
                return Typed(self.b.add(at.value, first_lane(self.machine(lanes), x.value)), i64)
            case loop.Across(combine, args, False) if not COMBINES[combine].positional:
                return self._across(COMBINES[combine], [self.value(a) for a in args])
            case loop.Across(combine, (arg,), True):
                return self._prefixes(COMBINES[combine], self.value(arg))
            case _:
                raise InternalError(f"{value_text(v)} is not printed yet")

    def _special(self, v: loop.Apply) -> Typed | None:
        """Print an operator that has other instructions for some operands; None if it has not."""
        match v:
            case loop.Apply("add", (loop.Cast() as first, other)) if first.dtype == f64:
                pass  # conversions keep the ports of additions busy
            case loop.Apply("fma", (first, loop.Const(1.0), other)):
                pass
            case loop.Apply("le", (loop.IndexValue(0), loop.LaneIndex() as gap)):
                mask = self._periodic_mask(gap)
                return Typed(mask, bool_) if mask else None
            case _:
                return None
        x, y = self.value(first), self.value(other)
        if x.lanes == y.lanes > 1:
            return Typed(self.machine(x.lanes).add_aside(x.value, y.value), x.dtype)
        return self._apply("add", [x, y])

    def _shuffle(self, v: loop.Shuffle) -> Typed:
        """Print lanes of vectors in another order."""
        match v:
            case loop.Shuffle((loop.Ref(name),), "permute", table) if name in self.tiles:
                return self.tiles[name][table[0] // len(table)]
            case loop.Shuffle(args, "halves"):
                pair = [self.value(a) for a in args]
                m = self.machine(pair[0].lanes)
                return Typed(pack_pairs(m, [x.value for x in pair]), i32)
            case loop.Shuffle((first, second), pattern, table):
                x, y = self.value(first), self.value(second)
                if pattern == "interleave":
                    table = tuple(k // 2 + k % 2 * x.lanes for k in range(2 * x.lanes))
                return Typed(self.b.shuffle_vector(x.value, y.value, lane_numbers(table)), x.dtype)
            case loop.Shuffle((arg,), "permute", (lane,)):
                x = self.value(arg)
                return Typed(self.b.extract_element(x.value, ir.IntType(32)(lane)), x.dtype)
            case loop.Shuffle((arg,), "permute", table):
                x = self.value(arg)
                return Typed(self.b.shuffle_vector(x.value, x.value, lane_numbers(table)), x.dtype)
            case _:
                raise InternalError(f"{value_text(v)} is not printed yet")

    def _apply(self, op: str, args: Sequence[Typed]) -> Typed:
        lanes = max([a.lanes for a in args])
        dtypes = [a.dtype for a in args]
        values = [a.value if lanes == 1 else splat(self.b, a.value, lanes) for a in args]
        row = SCALARS[op]
        return Typed(emit(row, self.machine(lanes), dtypes, values), row.result(*dtypes))

    def _across(self, row: Combine, args: Sequence[Typed]) -> Typed:
        """Combine the lanes of each vector, halves with halves."""
        dtype, m = args[0].dtype, self.machine(args[0].lanes)

        def join(m: LLVMMachine, low: Value, high: Value) -> Value:
            return SCALARS[row.scalar].lower(m, dtype, low, high)

        if len(args) == 1:
            return Typed(reduce_halves(m, args[0].value, join), dtype)

        def shuffle(first: Value, second: Value, lanes: list[int]) -> Value:
            return self.b.shuffle_vector(first, second, lane_numbers(lanes))

        rows = [x.value for x in args]
        return Typed(reduce_rows(rows, dtype.itemsize, shuffle, partial(join, m)), dtype)

    def _prefixes(self, row: Combine, x: Typed) -> Typed:
        """Combine each lane with those before it, by recursive doubling."""
        m = self.machine(x.lanes)
        start = m.const(x.dtype, row.identity(x.dtype))

        def join(m: LLVMMachine, before: State, state: State) -> State:
            return [SCALARS[row.scalar].lower(m, x.dtype, before[0], state[0])]

        (prefixes,) = scan_lanes(m, [x.value], [start], join)
        return Typed(prefixes, x.dtype)

    def _prefix(self, v: loop.Prefix) -> Value:
        mask = self.masks.get(v)
        if mask is None and isinstance(v.count, int) and v.count > 0:
            return ir.Constant(ir.VectorType(I1, v.lanes), [k < v.count for k in range(v.lanes)])
        if mask is None:
            left = self.index(v.count)
            left = opaque(self.b, left) if self.target.facts.has_mask_registers else left
            several = v.lanes * i32.itemsize > self.target.vector_bytes
            compare = short_lanes_before_end if several else lanes_before_end
            mask = self.masks[v] = compare(self.b, left, v.lanes)
        return mask

    # ---- indices with quotients ----------------------------------------------------------------

    def _lane_index(self, v: loop.LaneIndex) -> Value:
        """Print an index expression in all lanes: from a table, if it repeats."""
        if (period := period_of(v)) is not None:
            return index_lanes(self.b, period, self._lanes_at(v), self.index(period.first))
        start = self.index(v.start)

        def leaf(atom: Atom) -> Value:
            return start if atom.name == loop.AT else self._leaf(atom)

        along = LaneAxis(loop.AT, v.lanes)
        return IndexEmitter(self.b, leaf, self.above, along).emit(v.index)

    def _lanes_at(self, v: loop.LaneIndex, mask: Value | None = None) -> Lanes:
        """Return where the lanes of an index are."""
        start = self.index(v.start)
        return Lanes(loop.AT, start, v.lanes, mask, v.align, prefetched=self.prefetched)

    def _periodic_mask(self, gap: loop.LaneIndex) -> Value | None:
        """Print in which lanes an index is >= 0; None if it is not periodic."""
        truths = periodic_truths(period_of(gap))
        return None if truths is None else periodic_mask(self.b, truths, self._lanes_at(gap))

    def _permuted(self, m: LLVMMachine, place: loop.Place) -> Value | None:
        """Print a load whose index repeats, by permutations of vectors; None if it cannot be."""
        at, tests = place.at, periodic_tests(place.mask)
        period = period_of(at) if isinstance(at, loop.LaneIndex) else None
        if not isinstance(at, loop.LaneIndex) or period is None or tests is None:
            return None
        array = place.buffer, self.addresses[place.buffer], self.dtypes[place.buffer]
        return read_periodic(m, array, period, tests, self._lanes_at(at), self.index(period.first))

    # ---- memory --------------------------------------------------------------------------------

    def _mask(self, place: loop.Place) -> Value | None:
        if place.mask is None:
            return None
        mask = self.value(place.mask)
        if mask.lanes < place.lanes:
            return splat(self.b, mask.value, place.lanes)
        return mask.value

    def _address(self, place: loop.Place) -> Value:
        base, dtype = self.addresses[place.buffer], self.dtypes[place.buffer]
        at = self.index(place.at) if isinstance(place.at, Index) else self.value(place.at).value
        address = element_address(self.b, base, at, dtype)
        on = None if place.mask is None or place.lanes == 1 else self.value(place.mask)
        # A masked vector of no lanes takes hundreds of cycles where nothing is mapped.
        return self.b.select(on.value, address, base) if on and on.lanes == 1 else address

    def _offsets(self, place: loop.Place) -> Value:
        """Print the offset of every lane."""
        if not isinstance(place.at, Index):
            return self.value(place.at).value
        first = splat(self.b, self.index(place.at), place.lanes)
        stride = splat(self.b, self.index(place.stride), place.lanes)
        return self.b.add(first, self.b.mul(stride, iota(place.lanes)))

    def _load(self, v: loop.Load) -> Typed:
        if v.place.buffer in self.registers:
            return self.registers[v.place.buffer]
        place, dtype = v.place, self.dtypes[v.place.buffer]
        m = self.machine(place.lanes)
        permuted = self._permuted(m, place)
        if permuted is not None and v.other is None:
            return Typed(permuted, dtype.compute)
        mask = self._mask(place)
        plain = isinstance(place.at, Index)
        if place.lanes == 1:
            value = load_scalar(m, self._address(place), dtype, mask)
        elif plain and place.stride == 1:
            value = load_vector(m, self._address(place), dtype, mask)
        elif isinstance(place.stride, int) and (place.group or -FARTHEST_STEP <= place.stride < 0):
            address, group = self._address(place), place.group or (0,)
            value = load_strided(m, address, place.stride, dtype, mask, PREFETCH_BYTES, group)
        elif permuted is not None:
            value = permuted
        else:
            value = self._gather(m, place, mask)
        if v.other is not None and mask is not None:
            value = m.select(mask, value, m.const(v.other.dtype, v.other.value))
        return Typed(value, dtype.compute)

    def _gather(self, m: LLVMMachine, place: loop.Place, mask: Value | None) -> Value:
        """Print a gather, from a table in registers if it is small."""
        base, dtype = self.addresses[place.buffer], self.dtypes[place.buffer]
        offsets = self._offsets(place)
        picked = pick_from(m, dtype, base, self.lengths[place.buffer], offsets)
        if picked is None:
            return gather(m, base, offsets, dtype, mask)
        zero = ir.Constant(m.register_type(dtype), None)
        return picked if mask is None else self.b.select(mask, picked, zero)


def _is_at_hand(v: loop.Value) -> bool:
    """Return whether a value costs nothing wherever it is printed."""
    match v:
        case loop.Const() | loop.Ref() | loop.IndexValue(int()):
            return True
        case loop.IndexValue(Expr() as index):
            return is_short(index)
        case loop.Splat(arg):
            return _is_at_hand(arg)
        case _:
            return False


def period_of(v: loop.LaneIndex) -> PeriodicIndex | None:
    """Return how an index repeats along lanes; None if it does not."""
    at = next((a for a in atoms(v.index) if a.name == loop.AT), None)
    if at is None or at.extent == loop.UNKNOWN or coefficient(v.index, loop.AT) is not None:
        return None
    return find_period(v.index, loop.AT)


def periodic_tests(mask: loop.Value | None) -> list[list[bool]] | None:
    """Return what a mask's tests say for each position of their periods.

    None if one of them does not repeat.
    """
    match mask:
        case None:
            return []
        case loop.Apply(op, (a, b)) if op == BOTH:
            first, second = periodic_tests(a), periodic_tests(b)
            return None if first is None or second is None else first + second
        case loop.Apply("le", (loop.IndexValue(0), loop.LaneIndex() as gap)):
            truths = periodic_truths(period_of(gap))
            return None if truths is None else [truths]
        case _:
            return None


def print_func(
    b: ir.IRBuilder,
    target: Target,
    func: loop.Func,
    arrays: Sequence[Value],
    numbers: Sequence[Value],
) -> None:
    """Print the body of a function where a builder is, for some arrays and numbers."""
    printer = LoopPrinter(b, target)
    for p, address in zip(func.params, arrays, strict=True):
        printer.add_array(p.name, address, p.dtype)
    for name, value in zip(func.numbers, numbers, strict=True):
        printer.bind(name, value)
    printer.begin(func)
    printer.block(func.body)
