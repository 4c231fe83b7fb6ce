"""Convert a definition's statements to terms of `smelt.fusion.cascade` for one streamed axis.

Reductions over that axis become reductions of the analysis; reductions over other axes are opaque
to it.

    v0 = x[r,c]                     an opaque leaf term, along r and c
    v1 = max(v0 over c)             with axis "c": the reduction max of v0, along r
"""

from __future__ import annotations

from smelt.errors import InternalError
from smelt.fusion.cascade.term import Term, Terms
from smelt.kernel import ir
from smelt.kernel.walk import axes_of_value, refs, transform
from smelt.lower import assign_axes
from smelt.lower.define import Definition
from smelt.ops.combine import COMBINES
from smelt.types.dtype import DType, i64


class TermReader:
    """Terms of the statements of a definition."""

    def __init__(self, d: Definition, axis: str) -> None:
        self.d, self.axis = d, axis
        self.terms = Terms()
        self.facts = assign_axes.analyse(d.body)
        self.term_of: dict[str, Term] = {}
        self.origin: dict[Term, tuple[str, int]] = {}
        """Name that a term has in the definition, and the graph node it came from."""
        dtypes = {p.name: p.dtype.compute for p in d.inputs}
        self.param_dtypes = dtypes
        self.extents = {a.name: a.extent for a in d.axes.values()}
        for s in d.body:
            if isinstance(s, ir.Let):
                self.term_of[s.name] = term = self.term(s.value)
                self.origin.setdefault(term, (s.name, s.origin))
            elif isinstance(s, ir.Position):
                axes = self.facts.axes[s.name]
                args = tuple(self.term_of[n] for n in refs(s))
                self.term_of[s.name] = self.terms.opaque(s, args, axes, i64)
                self.origin[self.term_of[s.name]] = (s.name, -1)

    def term(self, v: ir.Value) -> Term:
        """Return the term of a value."""
        terms = self.terms
        match v:
            case ir.Const(value=number, dtype=dtype):
                return terms.const(number, dtype.compute)
            case ir.Ref(name=name):
                return self.term_of[name]
            case ir.Apply(op=op, args=args):
                return terms.apply(op, *map(self.term, args))
            case ir.Cast(arg=arg, dtype=dtype):
                return terms.cast(self.term(arg), dtype)
            case ir.Reduce(combine=combine, arg=arg, over=over) if (
                self.axis in over and COMBINES[combine].positional
            ):
                return terms.arg_reduce(combine, self.term(arg), over, self.extents)
            case ir.Reduce(arg=arg, over=over, dtype=dtype) if self.axis in over:
                return terms.reduce(v.combine, self.term(arg), over, dtype.compute)
            case ir.Dot(left=left, right=right, over=over, dtype=dtype) if self.axis in over:
                return terms.dot(self.term(left), self.term(right), over, dtype)
            case _:
                return self._opaque(v)

    def _opaque(self, v: ir.Value) -> Term:
        axes = axes_of_value(v, self.facts.axes)
        args = tuple(self.term_of[n] for n in refs(v))
        v = transform(v, self._use_term_name)
        if isinstance(v, ir.Load):
            dtype: DType = self.param_dtypes[v.param]
        elif isinstance(v, (ir.IndexValue, ir.Reduce, ir.Dot)):
            dtype = v.dtype.compute
        else:
            raise InternalError(f"a stream along {self.axis} has no place for {v}")
        return self.terms.opaque(v, args, axes, dtype)

    def _use_term_name(self, v: ir.Value) -> ir.Value:
        """Rename a reference to the name of its term.

        A cast that leaves the term unchanged has no name of its own.
        """
        return ir.Ref(self.origin[self.term_of[v.name]][0]) if isinstance(v, ir.Ref) else v
