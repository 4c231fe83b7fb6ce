"""Print the values of a kernel: expressions on lanes, loads with masks, reductions."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import replace

from smelt.codegen.triton.functions import (
    Function,
    combine_function,
    pair_function,
    register_of,
    scalar_function,
)
from smelt.codegen.triton.indices import IndexPrinter, element_strides, known_offset
from smelt.codegen.triton.lanes import Lanes
from smelt.codegen.triton.machine import TritonMachine
from smelt.codegen.triton.narrow_products import (
    is_dot,
    matrix_axes,
    narrow_products,
    operand_loads,
)
from smelt.codegen.triton.tensor_copies import row_strides
from smelt.codegen.triton.writer import Text, Writer, full, literal, refuse, type_name
from smelt.kernel import ir
from smelt.kernel.bounds import nonnegative
from smelt.kernel.walk import positions_of
from smelt.ops.combine import ANY_FAILS, COMBINES, EXTREMES, SUM_OF_PRODUCTS, Combine
from smelt.ops.contract import bare_axis
from smelt.ops.scalar import scalar
from smelt.types.dtype import DType, bool_, f32, f64, i8, i32, i64
from smelt.types.expr import Atom, Index, sub

ADD = COMBINES[SUM_OF_PRODUCTS[0]].scalar
"""The scalar operator that adds a product to what was summed before."""
INLINE_COST = 1.1
"""Scalar operators that cost no more are printed where they stand, as no function."""


class ValuePrinter:
    """Prints values of one kernel into a function's lines."""

    def __init__(self, kernel: ir.Kernel, writer: Writer, lanes: Lanes) -> None:
        self.kernel, self.writer, self.lanes = kernel, writer, lanes
        self.machine = TritonMachine(writer, kernel.name)
        self.indices = IndexPrinter(writer, self._variable, kernel.facts)
        self.names: dict[str, Text] = {}
        self.positions: set[str] = set()
        """Names that are indices: as values they have 64 bits."""
        self.new_states: dict[str, Text] = {}
        self.conditions: list[Text] = []
        self.failing: frozenset[ir.Value] = frozenset()
        """Conditions of the kernel that are known to fail here."""
        self.functions: dict[str, Function] = {}
        self.loads: dict[str, Text] = {}
        """Elements loaded before; no kernel loads what it has stored."""
        self.operands = operand_loads(kernel) if lanes.schedule.has_matrices else {}
        self.descriptors: dict[str, str] = {}
        """Names of the tensor descriptors that a program makes, by how it makes them."""
        self.sizes: dict[str, None] = {}
        self.strides: dict[str, tuple[str, int]] = {}

    # ---- indices and masks ---------------------------------------------------------------------

    def _variable(self, atom: Atom) -> Text:
        if atom.kind == "size":
            self.sizes[atom.name] = None
            return Text(f"size_{atom.name}", (), i32)
        if atom.kind == "value":
            return self.names[atom.name]
        return self._index_of(atom.name)

    def _index_of(self, axis: str) -> Text:
        """Return the indices of an axis; raise DeviceKernelError where no loop visits it."""
        if axis not in self.lanes.index:
            refuse(self.kernel.name, f"all of the axis {axis} outside of its stream")
        return self.lanes.index[axis]

    def mask(self, axes: Iterable[str], conditions: Sequence[Text] = ()) -> Text | None:
        """Return the condition that lanes exist along `axes`, and that others hold too."""
        parts = [self.lanes.mask[a] for a in axes if a in self.lanes.mask]
        parts += conditions
        if not parts:
            return None
        joint = self.writer.joint(*parts)
        code = " & ".join(self.writer.spread(p, joint) for p in parts)
        return Text(code, joint, bool_, is_atom=len(parts) == 1 and parts[0].axes == joint)

    def offset(self, param: ir.Param, index: Sequence[Index]) -> Text:
        """Return the distance from an array's first element to the one at `index`."""
        strides = element_strides(param)
        text = self.indices.text(known_offset(param, index))
        for d, (e, stride) in enumerate(zip(index, strides, strict=True)):
            if stride is None:
                text = self._add_strided(text, self.indices.text(e), param, d)
        return text

    def _add_strided(self, total: Text, index: Text, param: ir.Param, dimension: int) -> Text:
        name = f"stride_{param.name}_{dimension}"
        self.strides[name] = param.name, dimension
        term = Text(f"{index.operand} * {name}", index.axes, i32, is_atom=False)
        if total.number == 0:
            return term
        axes = self.writer.joint(total, term)
        code = f"{self.writer.spread(total, axes)} + {self.writer.spread(term, axes)}"
        return Text(code, axes, i32, is_atom=False)

    # ---- values --------------------------------------------------------------------------------

    def value(self, v: ir.Value) -> Text:
        """Return the text of a value; raise DeviceKernelError for a kind without one."""
        match v:
            case ir.Const(value=number, dtype=dtype):
                return literal(dtype, number)
            case ir.IndexValue(index=index, dtype=dtype):
                return self._index_value(index, dtype.compute)
            case ir.Load():
                return self.load(v)
            case ir.Apply(op=op, args=(total, ir.Dot() as product)) if op == ADD:
                return self.dot(product, self.value(total))
            case ir.Apply(op=op, args=args):
                return self.apply(op, [self.value(a) for a in args])
            case ir.Cast(arg=arg, dtype=dtype):
                return self.cast(self.value(arg), dtype)
            case ir.Reduce():
                return self.reduce(v)
            case ir.Scan():
                return self.scan(v)
            case ir.Rename(arg=arg, old=old, new=new):
                return self._renamed(self.value(arg), old, new)
            case ir.Dot():
                return self.dot(v)
            case ir.Ref(name=name) if name in self.positions:
                x = self.names[name]
                return Text(f"{x.code}.to(tl.int64)", x.axes, i64)
            case ir.Ref(name=name, next=is_new):
                return (self.new_states if is_new else self.names)[name]
            case ir.If():
                return self._if(v)
            case ir.Partial(condition=condition):
                return self._any_fails(condition)
            case ir.Extreme(arg=arg, largest=largest):
                end = self._end_of_block(v)
                return end or self._extreme(self.value(arg), COMBINES[EXTREMES[largest]])

    def _renamed(self, x: Text, old: str, new: str) -> Text:
        """Return a value along another axis, whose lanes have the same indices."""
        axes = tuple(new if a == old else a for a in x.axes)
        order = self.writer.sorted(axes)
        x = replace(x, axes=axes, stored=None)
        return x if order == axes else replace(x, code=_permuted(x, order), axes=order)

    def _index_value(self, e: Index, dtype: DType) -> Text:
        index = self.indices.text(e)
        if index.number is not None:
            return literal(dtype, index.number)
        if not index.axes:
            return Text(f"tl.full([], {index.code}, {type_name(dtype)})", (), dtype)
        return Text(f"{index.operand}.to({type_name(dtype)})", index.axes, dtype)

    def cast(self, x: Text, dtype: DType) -> Text:
        """Convert a value; half types round and stay in float32 registers."""
        if dtype.compute is not dtype:
            rounded = self.machine.round_half(self.cast(x, dtype.compute), dtype)
            return replace(rounded, narrow=dtype)
        if x.number is not None:
            return literal(dtype, x.number)
        if x.dtype == dtype:
            return x
        if dtype == bool_:
            return self.machine.compare("ne", x, literal(x.dtype, 0))
        converted = self.writer.inlined(lambda: self.machine.convert(x, x.dtype, dtype))
        if (x.dtype, dtype) != (i8, i32):
            return converted
        return replace(converted, narrow=i8, stored=x.stored)

    def apply(self, op: str, args: list[Text]) -> Text:
        """Print a scalar operator: in place if it is cheap, as a call of a function otherwise."""
        row = scalar(op)
        dtypes = [a.dtype for a in args]
        is_fast = self.lanes.schedule.policy.math == "fast" and row.hardware is not None
        is_fast = is_fast and dtypes[0] == f32
        if not is_fast and (row.cost <= INLINE_COST or row.is_select):
            x = self.writer.inlined(lambda: row.apply(self.machine, dtypes, args))
            return replace(x, narrow=_joint_narrow(args[1:])) if row.is_select else x
        function = self.function(scalar_function(op, dtypes, self.kernel.name, fast=is_fast))
        axes = self.writer.joint(*args)
        operands = ", ".join(self.writer.spread(full(a), axes, is_argument=True) for a in args)
        return Text(f"{function.name}({operands})", axes, function.dtype)

    def define(self, name: str, text: Text, *, is_position: bool = False) -> None:
        """Let a name stand for a value, or for a computed position."""
        self.names[name] = text
        if is_position:
            self.positions.add(name)

    def define_next(self, state: str, text: Text) -> None:
        """Let a text be the new value of a state."""
        self.new_states[state] = text

    def function(self, function: Function) -> Function:
        """Add a function to the program, once."""
        return self.functions.setdefault(function.name, function)

    def bound(self, x: Text) -> Text:
        """Return a name for a value that is read several times."""
        if x.code.isidentifier():
            return x
        return replace(self.writer.bind(full(x).code, x.axes, x.dtype), narrow=x.narrow)

    def broadcast(self, x: Text, axes: tuple[str, ...]) -> Text:
        """Return a value with all of `axes`."""
        if x.axes == axes:
            return x
        code = self.writer.spread(x, axes) if x.axes else full(x).code
        broadcast = f"tl.broadcast_to({code}, {self.shape(axes)})"
        return Text(broadcast, axes, x.dtype, narrow=x.narrow)

    def shape(self, axes: tuple[str, ...]) -> str:
        """Return the shape of a tensor with these axes."""
        return f"[{', '.join(self.lanes.block(a) for a in axes)}]"

    @contextmanager
    def scope(self) -> Generator[None]:
        """Forget names, loads and indices that are bound within, and the indentation."""
        before = dict(self.names), dict(self.new_states), dict(self.loads)
        with self.lanes.scope(), self.writer.block():
            yield
        self.names, self.new_states, self.loads = before

    @contextmanager
    def decided(self, failing: frozenset[ir.Value]) -> Generator[None]:
        """Print what is within for lanes where conditions are known to fail."""
        before, self.failing = self.failing, self.failing | failing
        yield
        self.failing = before

    def _if(self, v: ir.If) -> Text:
        """Select by a condition, under which alone the loads of either side are done."""
        if v.condition in self.failing:
            return self.value(v.other)
        condition = self.bound(self.value(v.condition))
        self.conditions.append(condition)
        chosen = self.value(v.value)
        self.conditions[-1] = self.bound(self.writer.inlined(lambda: self.machine.not_(condition)))
        other = self.value(v.other)
        self.conditions.pop()
        x = self.writer.inlined(lambda: self.machine.select(condition, chosen, other))
        return replace(x, narrow=_joint_narrow((chosen, other)))

    # ---- memory --------------------------------------------------------------------------------

    def load(self, v: ir.Load) -> Text:
        """Load elements where lanes exist, conditions hold and the index is in bounds."""
        param = self.kernel.param(v.param)
        if v in self.lanes.schedule.copied and not self.conditions:
            return self._copied(v, param)
        is_plain = not self.conditions and not any(map(positions_of, v.index))
        if is_plain and self._is_operand(v, param):
            with self.writer.ordered(self.operands[v]):
                return self._loaded(v, param)
        return self._loaded(v, param)

    def _loaded(self, v: ir.Load, param: ir.Param) -> Text:
        offset = self.offset(param, v.index)
        conditions = list(self.conditions)
        if v.other is not None:
            conditions += self._bounds(param, v.index)
        axes = self.writer.sorted((*offset.axes, *(a for c in conditions for a in c.axes)))
        mask = self.mask(axes, conditions)
        if mask is not None:  # a mask cannot have more elements than the pointers
            offset = self.broadcast(offset, axes)
        pointer = f"ptr_{v.param} + {offset.code}"
        code = f"tl.load({pointer})"
        is_operand = self._is_operand(v, param)
        fill = v.other.value if v.other is not None else 0 if is_operand else None
        if mask is not None:
            other = "" if fill is None else f", other={literal(param.dtype, fill).code}"
            guard = self.writer.spread(mask, axes, is_argument=True)
            code = f"tl.load({pointer}, mask={guard}{other})"
        if is_operand:
            return self._operand(code, axes, param.dtype)
        dtype = param.dtype.compute
        if dtype != param.dtype or dtype == bool_:
            code += f".to({type_name(dtype)})"
        if code not in self.loads:
            narrow = param.dtype if dtype != param.dtype else None
            self.loads[code] = replace(self.writer.bind(code, axes, dtype), narrow=narrow)
        return self.loads[code]

    def _copied(self, v: ir.Load, param: ir.Param) -> Text:
        """Load a block of an array by its descriptor: outside of the array are zeros."""
        axes = self.lanes.schedule.copied[v]
        block = tuple(a for a in axes if a is not None)
        name, starts, _ = self._descriptor(param, axes, v.index)
        code = f"{name}.load([{starts}])"
        if len(axes) > 2:
            code += f".reshape({', '.join(map(self.lanes.block, block))})"
        return self._operand(code, block, param.dtype)

    def store_block(self, s: ir.Store, param: ir.Param) -> None:
        """Store a block of an array by its descriptor: nothing outside of the array."""
        axes = self.lanes.schedule.stored[s]
        block = tuple(a for a in axes if a is not None)
        x = self.value(s.value)
        x = self.broadcast(x, self.writer.sorted(block))
        code = x.code if x.dtype == param.dtype else f"{x.operand}.to({type_name(param.dtype)})"
        code = _permuted(replace(x, code=code), block)
        name, starts, shape = self._descriptor(param, axes, s.index)
        if len(axes) > 2:
            code = f"({code}).reshape({shape})"
        self.writer.line(f"{name}.store([{starts}], {code})")

    def _descriptor(
        self, param: ir.Param, axes: Sequence[str | None], index: Sequence[Index]
    ) -> tuple[str, str, str]:
        """Return an array's descriptor, the indices at which a block begins, and its shape."""
        shape = ", ".join("1" if a is None else self.lanes.block(a) for a in axes)
        extents = ", ".join(self.indices.text(n).code for n in param.shape)
        strides = ", ".join(self.indices.text(n).code for n in (*row_strides(param), 1))
        arguments = f"ptr_{param.name}, [{extents}], [{strides}], [{shape}]"
        code = f"tl.make_tensor_descriptor({arguments})"
        name = self.descriptors.setdefault(code, f"desc_{param.name}_{len(self.descriptors)}")
        starts = ", ".join(
            self._coordinate(e) if a is None else self.lanes.start(a)
            for a, e in zip(axes, index, strict=True)
        )
        return name, starts, shape

    def _coordinate(self, e: Index) -> str:
        """Return an index without lanes, of 32 bits."""
        index = self.indices.text(e)
        if index.number is not None or self.lanes.index_type == "tl.int32":
            return index.code
        return f"{index.operand}.to(tl.int32)"

    def _is_operand(self, v: ir.Load, param: ir.Param) -> bool:
        """Return whether a contraction may take loaded elements as they are, zeros outside."""
        is_zero = v.other is None or v.other.value == 0
        return v in self.operands and param.dtype != bool_ and is_zero

    def _operand(self, code: str, axes: tuple[str, ...], dtype: DType) -> Text:
        """Return loaded elements that a contraction reads: it takes them as they are in memory."""
        if code not in self.loads:
            self.loads[code] = self.writer.bind(code, axes, dtype)
        stored = self.loads[code]
        axes = tuple(a.name for a in self.kernel.axes if a.name in axes)
        code = _permuted(stored, axes)
        if dtype.compute == dtype:
            return Text(code, axes, dtype, stored=stored)
        converted = f"{code}.to({type_name(dtype.compute)})"
        return Text(converted, axes, dtype.compute, narrow=dtype, stored=stored)

    def _bounds(self, param: ir.Param, index: Sequence[Index]) -> list[Text]:
        """Return the conditions that are not proven for every index."""
        conditions: list[Text] = []
        for e, extent in zip(index, param.shape, strict=True):
            text, facts = self.indices.text(e), self.kernel.facts
            stop = self.indices.text(extent)
            tests: list[str] = []
            if not nonnegative(e, facts):
                tests.append(f"({text.operand} >= 0)")
            if not nonnegative(sub(sub(extent, 1), e), facts):
                tests.append(f"({text.operand} < {stop.operand})")
            if tests and text.number is not None and (stop.number is not None or text.number < 0):
                tests = [full(literal(bool_, False)).code]  # known: no element is inside
            conditions += [Text(t, text.axes, bool_) for t in tests]
        return conditions

    # ---- reductions ----------------------------------------------------------------------------

    def reduce(self, v: ir.Reduce) -> Text:
        """Reduce lanes that exist; others hold the operator's identity."""
        row = COMBINES[v.combine]
        with self.projected(v.over):
            x = self.value(v.arg)
        axes = self.writer.sorted((*x.axes, *(a for a in v.over if self._index_of(a).axes)))
        if row.positional:
            return self._position(row, self.broadcast(x, axes), v.over)
        # Floats of a block are added in their own type, sums of blocks in the wider one: few lanes
        # of a GPU convert and add doubles at once.
        is_narrow = row.name == SUM_OF_PRODUCTS[0] and x.dtype == f32 and v.dtype == f64
        dtype = f32 if is_narrow else v.dtype.compute
        x = self.broadcast(self.cast(x, dtype), axes)
        x = self._masked(x, v.over, row.identity(dtype))
        over = [a for a in v.over if a in axes]
        return self.cast(self._combined(row, x, over, dtype) if over else x, v.dtype.compute)

    @contextmanager
    def projected(self, over: Sequence[str]) -> Generator[None]:
        """Replace conditions along reduced axes: all of a row is needed if any place in it is."""
        before = self.conditions
        row = COMBINES[ANY_FAILS[0]]
        self.conditions = []
        for c in before:
            inside = [a for a in c.axes if a in over]
            masked = self._masked(c, inside, row.identity(bool_))
            combined = self._combined(row, masked, inside, bool_) if inside else c
            self.conditions.append(self.bound(combined))
        yield
        self.conditions = before

    def _masked(self, x: Text, over: Sequence[str], identity: float | int | bool) -> Text:
        mask = self.mask(a for a in x.axes if a in over)
        if mask is None:
            return x
        return self.writer.inlined(lambda: self.machine.select(mask, x, literal(x.dtype, identity)))

    def _combined(self, row: Combine, x: Text, over: Sequence[str], dtype: DType) -> Text:
        code, axes = x.code, list(x.axes)
        if dtype == bool_:
            code = f"{x.operand}.to(tl.int32)"
        is_sum = row.name == SUM_OF_PRODUCTS[0]
        name = "" if is_sum else self._combine(row, dtype)
        for axis in reversed(self.writer.sorted(over)):
            place = axes.index(axis)
            code = f"tl.sum({code}, {place})" if is_sum else f"tl.reduce({code}, {place}, {name})"
            axes.remove(axis)
        if is_sum and dtype.is_integer and dtype.bits < i32.bits:  # summed in 32 bits
            code = f"{code}.to({type_name(dtype)})"
        result = Text(code, tuple(axes), register_of(dtype))
        return self.cast(result, bool_) if dtype == bool_ else result

    def _combine(self, row: Combine, dtype: DType) -> str:
        return self.function(combine_function(row, dtype, self.kernel.name)).name

    def _any_fails(self, condition: ir.Value) -> Text:
        row, negation = ANY_FAILS
        x = self.apply(negation, [self.value(condition)])
        x = self._masked(x, x.axes, COMBINES[row].identity(bool_))
        return self.bound(self._combined(COMBINES[row], x, x.axes, bool_)) if x.axes else x

    def _end_of_block(self, v: ir.Extreme) -> Text | None:
        """Return the first or last index of a streamed axis; None for other values.

        A block without lanes may have any.
        """
        name = bare_axis(v.arg.index) if isinstance(v.arg, ir.IndexValue) else None
        if name is None or name not in self.lanes.ends:
            return None
        first, end = self.lanes.ends[name]
        place = f"{end} - 1" if v.largest else first
        return self.writer.bind(f"tl.full([], {place}, tl.int64)", (), i64)

    def _extreme(self, x: Text, row: Combine) -> Text:
        if not x.axes:
            return x
        masked = self._masked(x, x.axes, row.identity(x.dtype))
        return self.bound(self._combined(row, masked, x.axes, x.dtype))

    def dot(self, v: ir.Dot, total: Text | None = None) -> Text:
        """Print a contraction, or its sum with `total`.

        Products of later terms are added last, where what they are added to is finite: infinity
        times a later term may be NaN. Tensor cores add those of the first terms to the total.
        """
        first, rest = self._products(v)
        if rest and total is not None and total.axes == first.axes:
            first, total = self.apply(ADD, [total, first]), None
        if rest:
            first = self.bound(first)
            is_finite = f'tl.abs({first.code}) < float("inf")'
            later = f"tl.where({is_finite}, {rest}, 0.0)"
            first = Text(f"{first.code} + {later}", first.axes, first.dtype)
        return first if total is None else self.apply(ADD, [total, first])

    def _products(self, v: ir.Dot) -> tuple[Text, str]:
        """Contract two matrices with `tl.dot`, or two batches of them; later terms apart.

        Other operands are multiplied and summed.
        """
        with self.projected(v.over):
            left, right = self.value(v.left), self.value(v.right)
        dtype = v.dtype.compute
        forms = matrix_axes(left.axes, right.axes, v.over)
        is_printed = is_dot(dtype, left.narrow, right.narrow) and dtype == left.dtype == right.dtype
        if forms is None or not is_printed or not self.lanes.schedule.has_matrices:
            return self._sum_of_products(left, right, v, dtype), ""
        products = narrow_products(left, right, self.lanes.schedule.policy)
        operands = tuple(
            x if x.stored is not None else self._masked(x, v.over, 0) for x in (left, right)
        )
        if products.has_two_terms:
            operands = self.bound(operands[0]), self.bound(operands[1])
        dots: list[str] = []
        for pair in products.terms:
            codes = (
                _permuted(term(x), axes)
                for x, term, axes in zip(operands, pair, forms, strict=True)
            )
            dots.append(f"tl.dot({', '.join(codes)}{products.options}){products.result}")
        order = (*forms[0][:-1], forms[1][-1])
        axes = self.writer.sorted(order)
        first, rest = (
            _permuted(Text(" + ".join(part), order, dtype), axes) if part else ""
            for part in (dots[:1], dots[1:])
        )
        return Text(first, axes, dtype, is_atom=True), rest

    def _sum_of_products(self, left: Text, right: Text, v: ir.Dot, dtype: DType) -> Text:
        row, operator = SUM_OF_PRODUCTS
        factors = [self.cast(x, dtype) for x in (left, right)]
        products = self.apply(operator, factors)
        axes = self.writer.sorted((*products.axes, *(a for a in v.over if self._index_of(a).axes)))
        over = [a for a in v.over if a in axes]
        products = self._masked(self.broadcast(products, axes), over, 0)
        return self._combined(COMBINES[row], products, over, dtype) if over else products

    def _position(self, row: Combine, x: Text, over: tuple[str, ...]) -> Text:
        """Reduce pairs of a value and its row-major position in the block over `over`."""
        place = Text("0", (), i32, 0)
        for axis in over:
            index = self._index_of(axis)
            if not index.axes:  # one index: it changes no position
                continue
            extent = self.indices.text(self.kernel.axis(axis).extent)
            length = self.lanes.length_of_block(axis, extent.operand)
            here = Text(self.lanes.place_in_block(axis), index.axes, i32)
            axes = self.writer.joint(place, here)
            row_before = f"{self.writer.spread(place, axes)} * {length} + "
            code = f"{'' if place.number == 0 else row_before}{self.writer.spread(here, axes)}"
            place = Text(code, axes, i32, is_atom=place.number == 0)
        x = self.bound(self._masked(x, over, row.identity(x.dtype)))
        places = self.bound(self.broadcast(full(self._as_i32(place)), x.axes))
        places = self.bound(self._masked(places, over, (1 << 31) - 1))
        function = self.function(pair_function(row, x.dtype, self.kernel.name))
        axes = list(x.axes)
        for axis in reversed(self.writer.sorted(a for a in over if a in axes)):
            pair = f"({x.code}, {places.code}), {axes.index(axis)}, {function.name}"
            axes.remove(axis)
            x, places = self.writer.bind_pair(f"tl.reduce({pair})", tuple(axes), x.dtype, i32)
        return Text(f"{places.code}.to(tl.int64)", tuple(axes), i64)

    def _as_i32(self, place: Text) -> Text:
        """Return positions in the type that pairs are reduced in."""
        if self.lanes.index_type == "tl.int32" or not place.axes:
            return place
        return replace(place, code=f"{place.operand}.to(tl.int32)", is_atom=True)

    def scan(self, v: ir.Scan) -> Text:
        """Scan lanes in order; those that do not exist come last, or change nothing."""
        dtype = v.dtype.compute
        with self.projected((v.along,)):
            x = self.value(v.arg)
        if not self._index_of(v.along).axes:
            return self.cast(x, dtype)
        axes = self.writer.sorted((*x.axes, v.along))
        x, row = self.broadcast(self.cast(x, dtype), axes), COMBINES[v.combine]
        if v.along in self.lanes.late:
            x = self._masked(x, (v.along,), row.identity(dtype))
        name = self._combine(row, dtype)
        return Text(f"tl.associative_scan({x.code}, {axes.index(v.along)}, {name})", axes, dtype)


def _permuted(x: Text, axes: tuple[str, ...]) -> str:
    if x.axes == axes:
        return x.code
    if x.axes[:-2] == axes[:-2]:
        return f"tl.trans({x.code})"
    return f"tl.permute({x.code}, {', '.join(str(x.axes.index(a)) for a in axes)})"


def _joint_narrow(sides: Sequence[Text]) -> DType | None:
    """Return the narrow type of both sides, if it is one; it represents 0 too."""
    types = {s.narrow for s in sides if s.number is None}
    (narrow,) = types if len(types) == 1 else (None,)
    if narrow is None or any(s.number is not None and s.number != 0 for s in sides):
        return None
    return narrow
