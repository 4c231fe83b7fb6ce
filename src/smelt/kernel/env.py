"""Scopes of a kernel: what names mean, and the types and axes of values.

Values of the kernel IR do not store their types.  The parser, the printer, the verifier and
analyses walk the statements with an `Env`, and derive the dtype of a value and the axes that it
varies along from the names bound so far.

>>> from smelt.kernel.ir import Apply, Load, Param, Reduce
>>> from smelt.types.dtype import f16
>>> from smelt.types.expr import axis, size
>>> env = Env({"x": Param("x", f16, (size("r"), size("c")))})
>>> row = Load("x", (axis("r", size("r")), axis("c", size("c"))))
>>> dtype_of(row, env), sorted(axes_of(Reduce("sum", row, ("c",), dtype_of(row, env)), env))
(f32, ['r'])
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field

from smelt.errors import VerifyError
from smelt.kernel import ir
from smelt.kernel.walk import Axes, value_axes
from smelt.ops.scalar import SCALARS
from smelt.python.dataclass import dataclass
from smelt.types.dtype import DType, bool_, i64
from smelt.types.expr import Index, dependent_axes


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

    params: Mapping[str, ir.Param]
    names: dict[str, Bound] = field(default_factory=dict)
    new: dict[str, Bound] = field(default_factory=dict)

    @staticmethod
    def of(kernel: ir.Kernel) -> Env:
        """Return the scope at the start of a kernel's body."""
        return Env({p.name: p for p in (*kernel.outputs, *kernel.inputs)})

    @staticmethod
    def after(kernel: ir.Kernel) -> Env:
        """Return one scope with every name of a kernel, those inside streams included.

        If several scopes bind a name, the last binding wins.
        """
        env = Env.of(kernel)
        env.bind_all(kernel.body)
        return env

    def child(self) -> Env:
        """Return a nested scope whose bindings are not visible outside."""
        return Env(self.params, dict(self.names), dict(self.new))

    def bind(self, statement: ir.Statement) -> None:
        """Bind what a statement defines; of a stream, its states only.

        Raises VerifyError for unknown names, DTypeError for operators on wrong types.
        """
        match statement:
            case ir.Let(name=name, value=value):
                self.names[name] = Bound(dtype_of(value, self), axes_of(value, self))
            case ir.Position(name=name, value=value, extent=extent):
                axes = axes_of(value, self)
                self.names[name] = Bound(i64, axes, extent)
            case ir.Update(state=name, value=value):
                old = self.names.get(name)
                self.new[name] = old or Bound(dtype_of(value, self), axes_of(value, self))
            case ir.Stream(states=states):
                for s in states:
                    self.names[s.name] = self._state(s)
            case _:
                pass

    def _state(self, s: ir.State) -> Bound:
        dtype = s.dtype.compute if s.dtype else dtype_of(s.init, self)
        return Bound(dtype, frozenset(s.axes))

    def bind_all(self, body: Iterable[ir.Statement]) -> None:
        """Bind the statements of a body in order, descending into streams."""
        for s in body:
            self.bind(s)
            if isinstance(s, ir.Stream):
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

    def param(self, name: str) -> ir.Param:
        """Return the parameter of that name.

        Raises VerifyError if there is none.
        """
        param = self.params.get(name)
        if param is None:
            raise VerifyError(f"{name} is not a parameter of the kernel")
        return param


def dtype_of(value: ir.Value, env: Env | ir.Kernel) -> DType:
    """Return the element type of a value in registers, where half types are float32.

    A kernel passed as `env` stands for `Env.after(kernel)`. Raises VerifyError for unknown names
    and DTypeError for operators on wrong types.
    """
    scope = Env.after(env) if isinstance(env, ir.Kernel) else env
    return _dtype(value, scope)


def _dtype(value: ir.Value, env: Env) -> DType:
    match value:
        case ir.Const(dtype=dtype) | ir.IndexValue(dtype=dtype):
            return dtype.compute
        case ir.Load(param=param):
            return env.param(param).dtype.compute
        case ir.Apply(op=op, args=args):
            row = SCALARS.get(op)
            if row is None:
                raise VerifyError(f"{op} is not a scalar operator")
            return row.result(*(_dtype(a, env) for a in args))
        case (
            ir.Cast(dtype=dtype)
            | ir.Reduce(dtype=dtype)
            | ir.Scan(dtype=dtype)
            | ir.Dot(dtype=dtype)
        ):
            return dtype.compute
        case ir.Ref(name=name, next=new):
            return env.lookup(name, new=new).dtype
        case ir.If(value=chosen):
            return _dtype(chosen, env)
        case ir.Partial():
            return bool_
        case ir.Extreme(arg=arg) | ir.Rename(arg=arg):
            return _dtype(arg, env)


def axes_of(value: ir.Value, env: Env | ir.Kernel) -> Axes:
    """Return the axes that a value varies along: its operands' axes minus reduced ones.

    A state has the axes it declares; fixed axes of the grid are not listed.
    """
    scope = Env.after(env) if isinstance(env, ir.Kernel) else env
    return value_axes(value, lambda name, new: scope.lookup(name, new=new).axes)


def index_axes(index: Iterable[Index], env: Env) -> Axes:
    """Return the axes of index expressions, following computed positions."""
    return dependent_axes(index, lambda name: env.lookup(name).axes)
