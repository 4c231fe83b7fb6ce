"""Scopes of a kernel: what names mean, and the types and axes of values.

Values of the kernel IR do not store their types.  The parser, the printer, the verifier and
analyses walk the statements with an `Env`, and derive the dtype of a value and the axes that it
varies along from the names bound so far.  Axes of all statements, and those whose positions are
independent, need no `Env`.

>>> from smelt.kernel.ir import Apply, Load, Param, Reduce
>>> from smelt.types.dtype import f16
>>> from smelt.types.expr import axis, size
>>> env = Env({"x": Param("x", f16, (size("r"), size("c")))})
>>> row = Load("x", (axis("r", size("r")), axis("c", size("c"))))
>>> dtype_of(row, env), sorted(axes_of(Reduce("sum", row, ("c",), dtype_of(row, env)), env))
(f32, ['r'])
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from typing import TypeAlias

from smelt.errors import VerifyError
from smelt.kernel.ir import (
    Apply,
    Cast,
    Const,
    Dot,
    Extreme,
    If,
    IndexValue,
    Kernel,
    Let,
    Load,
    Param,
    Partial,
    Position,
    Reduce,
    Ref,
    Rename,
    Scan,
    State,
    Statement,
    Store,
    Stream,
    Update,
    Value,
)
from smelt.kernel.walk import children, joined_axes, statements, visit_statement
from smelt.ops.scalar import SCALARS
from smelt.python.caches import cached_by_identity
from smelt.python.dataclass import dataclass
from smelt.types.affine import dependent_axes
from smelt.types.dtype import DType, bool_, i64
from smelt.types.expr import Index

Axes: TypeAlias = frozenset[str]
NO_AXES: Axes = frozenset()
MAX_BODIES = 256
"""Maximum bodies whose axes are kept: those of a kernel while its schedules are compared."""


def value_axes(value: Value, of: Callable[[str, bool], Axes]) -> Axes:
    """Return the axes that a value varies along.

    `of(name, new)` are those of a bound name, or of a state's new value.
    """
    match value:
        case Ref(name=name, next=new):
            return of(name, new)
        case Const() | Partial() | Extreme():
            return NO_AXES
        case IndexValue(index=index):
            return dependent_axes((index,), lambda name: of(name, False))
        case _:
            inside = NO_AXES.union(*(value_axes(c, of) for c in children(value)))
    match value:
        case Load(index=index):
            return inside | dependent_axes(index, lambda name: of(name, False))
        case Reduce(over=over) | Dot(over=over):
            return inside - set(over)
        case Scan(along=along):
            return inside | {along}
        case Rename(old=old, new=new) if old in inside:
            return inside - {old} | {new}
        case _:
            return inside


def axes_of_value(value: Value, names: Mapping[str, Axes]) -> Axes:
    """Return the axes of a value; `names` has those of bound names."""
    return value_axes(value, lambda name, _: names.get(name, NO_AXES))


def axes_of_index(index: Iterable[Index], names: Mapping[str, Axes]) -> Axes:
    """Return the axes of index expressions, also through computed positions."""
    return dependent_axes(index, lambda name: names.get(name, NO_AXES))


@cached_by_identity(MAX_BODIES)
def axes_of_body(body: tuple[Statement, ...]) -> Mapping[str, Axes]:
    """Return the axes of names and states, which may depend on one another.

    A state does not vary along the axes that its stream visits.
    """
    names: dict[str, Axes] = {}
    before: dict[str, Axes] | None = None
    while names != before:
        before = dict(names)
        _add_axes(body, names, {})
        if not any(isinstance(s, Stream) for s in body):
            break  # names follow what they are computed from
    return names


def _add_axes(
    body: Iterable[Statement], names: dict[str, Axes], visited: Mapping[str, Axes]
) -> None:
    """Add the axes of a body's names; `visited`: what a state's stream visits."""
    for s in body:
        if isinstance(s, Let | Position):
            names[s.name] = names.get(s.name, Axes()) | axes_of_value(s.value, names)
        elif isinstance(s, Update):
            axes = axes_of_value(s.value, names) - visited.get(s.state, Axes())
            names[s.state] = names.get(s.state, Axes()) | axes
        elif isinstance(s, Stream):
            stream_axes = Axes(b.axis for b in s.blocks)
            for state in s.states:
                axes = axes_of_value(state.init, names) | set(state.axes)
                names[state.name] = names.get(state.name, Axes()) | axes
            _add_axes(s.body, names, {**visited, **{t.name: stream_axes for t in s.states}})


def is_free(body: tuple[Statement, ...], axis: str) -> bool:
    """Return whether every position of an axis is computed and stored apart from all others."""
    names = axes_of_body(body)
    for s in statements(body):
        values = [*visit_statement(s)]
        if any(isinstance(v, Partial | Extreme) or axis in joined_axes(v) for v in values):
            return False
        if isinstance(s, Store):
            indexed = axes_of_index(s.index, names)
            if s.join or axis not in indexed:
                return False
        if isinstance(s, Stream) and axis in {b.axis for b in (*s.blocks, *s.bounds)}:
            return False
        if axis in end_axes(s, names):
            return False
    return True


def end_axes(s: Statement, names: Mapping[str, Axes]) -> Axes:
    """Return the axes of a stream's ends and condition; none of other statements."""
    if not isinstance(s, Stream):
        return NO_AXES
    ends = (e for b in (*s.blocks, *s.bounds) for e in (b.start, b.stop))
    return NO_AXES.union(*(axes_of_value(e, names) for e in (*ends, s.where) if e is not None))


# ---- environment ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bound:
    """Bound name: its element type in registers and the axes it varies along."""

    dtype: DType
    axes: Axes
    index: Index | None = None
    """For a computed position, its extent: the bound of the variable in index expressions."""


@dataclass
class Env:
    """Parameters and the names bound so far.

    New states (`s'`) are stored separately from old ones; `child` opens the scope of a stream's
    body.
    """

    params: Mapping[str, Param]
    names: dict[str, Bound] = field(default_factory=dict)
    new: dict[str, Bound] = field(default_factory=dict)

    @staticmethod
    def of(kernel: Kernel) -> Env:
        """Return the scope at the start of a kernel's body."""
        return Env({p.name: p for p in (*kernel.outputs, *kernel.inputs)})

    @staticmethod
    def after(kernel: Kernel) -> Env:
        """Return one scope with every name of a kernel, those inside streams included.

        If several scopes bind a name, the last binding wins.
        """
        env = Env.of(kernel)
        env.bind_all(kernel.body)
        return env

    def child(self) -> Env:
        """Return a nested scope whose bindings are not visible outside."""
        return Env(self.params, dict(self.names), dict(self.new))

    def bind(self, statement: Statement) -> None:
        """Bind what a statement defines; of a stream, its states only.

        Raises VerifyError for unknown names, DTypeError for operators on wrong types.
        """
        match statement:
            case Let(name=name, value=value):
                self.names[name] = Bound(dtype_of(value, self), axes_of(value, self))
            case Position(name=name, value=value, extent=extent):
                axes = axes_of(value, self)
                self.names[name] = Bound(i64, axes, extent)
            case Update(state=name, value=value):
                old = self.names.get(name)
                self.new[name] = old or Bound(dtype_of(value, self), axes_of(value, self))
            case Stream(states=states):
                for s in states:
                    self.names[s.name] = self._state(s)
            case _:
                pass

    def _state(self, s: State) -> Bound:
        dtype = s.dtype.compute if s.dtype else dtype_of(s.init, self)
        return Bound(dtype, frozenset(s.axes))

    def bind_all(self, body: Iterable[Statement]) -> None:
        """Bind the statements of a body in order, descending into streams."""
        for s in body:
            self.bind(s)
            if isinstance(s, Stream):
                self.bind_all(s.body)

    def lookup(self, name: str, *, new: bool = False) -> Bound:
        """Return the binding of a name.

        Raises VerifyError if it is not bound here.
        """
        bound = (self.new if new else self.names).get(name)
        if bound is None:
            shown = f"{name}'" if new else name
            raise VerifyError(f"{shown} is read where it has no value yet")
        return bound

    def param(self, name: str) -> Param:
        """Return the parameter of that name.

        Raises VerifyError if there is none.
        """
        param = self.params.get(name)
        if param is None:
            raise VerifyError(f"{name} is not a parameter of the kernel")
        return param


def dtype_of(value: Value, env: Env | Kernel) -> DType:
    """Return the element type of a value in registers, where half types are float32.

    A kernel passed as `env` stands for `Env.after(kernel)`. Raises VerifyError for unknown names
    and DTypeError for operators on wrong types.
    """
    scope = Env.after(env) if isinstance(env, Kernel) else env
    return _dtype(value, scope)


def _dtype(value: Value, env: Env) -> DType:
    match value:
        case Const(dtype=dtype) | IndexValue(dtype=dtype):
            return dtype.compute
        case Load(param=param):
            return env.param(param).dtype.compute
        case Apply(op=op, args=args):
            row = SCALARS.get(op)
            if row is None:
                raise VerifyError(f"{op} is not a scalar operator")
            return row.result(*(_dtype(a, env) for a in args))
        case Cast(dtype=dtype) | Reduce(dtype=dtype) | Scan(dtype=dtype) | Dot(dtype=dtype):
            return dtype.compute
        case Ref(name=name, next=new):
            return env.lookup(name, new=new).dtype
        case If(value=chosen):
            return _dtype(chosen, env)
        case Partial():
            return bool_
        case Extreme(arg=arg) | Rename(arg=arg):
            return _dtype(arg, env)


def axes_of(value: Value, env: Env | Kernel) -> Axes:
    """Return the axes that a value varies along: its operands' axes minus reduced ones.

    A state has the axes it declares; fixed axes of the grid are not listed.
    """
    scope = Env.after(env) if isinstance(env, Kernel) else env
    return value_axes(value, lambda name, new: scope.lookup(name, new=new).axes)


def index_axes(index: Iterable[Index], env: Env) -> Axes:
    """Return the axes of index expressions, following computed positions."""
    return dependent_axes(index, lambda name: env.lookup(name).axes)
