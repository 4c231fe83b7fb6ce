"""Products and convolutions that a numerical library computes instead of a kernel of ours.

Which contractions a library's matrix product computes (`product_form`), the library call in their
place, and the libraries that may be called. NumPy's product, which is that of its BLAS, is always
there; a front end whose arrays belong to another library adds that one (`add_provider`), and
compiles its programs `using` it.

>>> from smelt.types.dtype import f32
>>> x, w = TensorType(f32, (4, 8)), TensorType(f32, (16, 8))
>>> form = product_form(Contract.parse("m,k; n,k -> m,n"), x, w)
>>> product_call(form, PROVIDERS["numpy"]).infer(x, w).shape, form.rows, form.columns, form.terms
((4, 16), 4, 16, 8)
>>> product_form(Contract.parse("m,k; n,k -> m"), x, w) is None
True
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import field
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from smelt.errors import ExternError
from smelt.ops.contract import Contract, bare_axis
from smelt.ops.extern import Extern, ExternRow, register
from smelt.ops.spec import Array, TensorOp
from smelt.python.dataclass import dataclass
from smelt.types.dtype import f32, f64
from smelt.types.expr import Index, add, floordiv, mul, product, sub
from smelt.types.tensor import TensorType

Wish: TypeAlias = Literal["auto", "never", "plain", "always"]
"""The values of the setting `library_products`."""

DTYPES = (f32, f64)
"""Types whose products libraries compute with our accuracy: sums in the type itself."""


CLEAR_GAIN = 0.95
"""Maximum ratio of the library's time to ours for it to count as faster: a call costs a little more
in a program than in the measurement, since its operands are colder."""


class Provider(NamedTuple):
    """A library with a matrix product."""

    name: str
    title: str
    """Its name for people."""
    matmul: Callable[[Array, Array, Array], object]
    """Computes stacks of matrices: (result, left, right); the result is contiguous."""
    get_threads: Callable[[], int | None]
    """Returns the threads that a call takes; None if unknown."""
    set_threads: Callable[[int], object]
    convolve: Callable[[Array, Array, Array, WindowedProduct], object] | None = None
    """Computes a convolution: (result, images, filters), with axes in the library's order."""


class WindowedProduct(NamedTuple):
    """How a convolution's arrays are stored, and how its windows slide."""

    image_axes: tuple[int, ...]
    """The axes of the images, as batch, channels and positions."""
    filter_axes: tuple[int, ...]
    """The axes of the filters, as results, channels and positions."""
    result_axes: tuple[int, ...]
    steps: tuple[int, ...]
    dilations: tuple[int, ...]
    padding: tuple[int, ...]
    """Zeros on either side."""


@dataclass(frozen=True, slots=True)
class Library:
    """A library, and what is known about its speed here."""

    provider: Provider
    ratios: Mapping[str, float] = field(default_factory=dict[str, float])
    """Its time divided by ours, by shape class and type, as `large f32`."""
    may_run: bool = True
    """False if it would take more threads than a call may."""


PROVIDERS: dict[str, Provider] = {}
_IN_USE: ContextVar[str] = ContextVar("smelt_library", default="numpy")


def add_provider(library: Provider) -> Provider:
    """Register a library, with the row of its calls."""
    PROVIDERS[library.name] = library
    register(_product_row(library))
    if library.convolve is not None:
        register(_convolution_row(library, library.convolve))
    return library


@contextmanager
def using(library: Provider) -> Generator[None]:
    """Call the products of a library in the programs that are compiled meanwhile."""
    token = _IN_USE.set(library.name)
    try:
        yield
    finally:
        _IN_USE.reset(token)


def provider() -> Provider:
    """Return the library whose products are called."""
    return PROVIDERS[_IN_USE.get()]


@contextmanager
def limited_threads(library: Provider, threads: int) -> Generator[None]:
    """Limit a library's threads for a measurement, if it can be done."""
    before = library.get_threads()
    if before is None:
        yield
        return
    library.set_threads(threads)
    try:
        yield
    finally:
        library.set_threads(before)


def _product_row(library: Provider) -> ExternRow:
    name = f"{library.name}_product"

    def into(out: Array, left: Array, right: Array, spec: str) -> None:
        a, b, shape = _layout(spec).matrices(out, left, right)
        target = out if out.flags.c_contiguous else np.empty(out.shape, out.dtype)
        _checked(name, library.matmul, target.reshape(shape), a, b)
        if target is not out:
            out[...] = target

    def call(left: Array, right: Array, spec: str) -> Array:
        types = (TensorType(_DTYPES[x.dtype], x.shape) for x in (left, right))
        shape = Contract.parse(spec).infer(*types).shape
        out = np.empty([int(n) for n in shape if isinstance(n, int)], left.dtype)
        into(out, left, right, spec)
        return out

    def infer(left: TensorType, right: TensorType, spec: str) -> TensorType:
        return Contract.parse(spec).infer(left, right)

    return ExternRow(name, f"a matrix product by {library.title}", infer, call, into=into)


def _convolution_row(
    library: Provider, convolve: Callable[[Array, Array, Array, WindowedProduct], object]
) -> ExternRow:
    name = f"{library.name}_convolution"

    def into(out: Array, images: Array, filters: Array, **options: tuple[int, ...]) -> None:
        w = WindowedProduct(**options)
        if not out.size:
            return
        views = out.transpose(w.result_axes), images.transpose(w.image_axes)
        _checked(name, convolve, *views, filters.transpose(w.filter_axes), w)

    def call(images: Array, filters: Array, **options: tuple[int, ...]) -> Array:
        types = (TensorType(_DTYPES[x.dtype], x.shape) for x in (images, filters))
        shape = infer(*types, **options).shape
        out = np.empty([int(n) for n in shape if isinstance(n, int)], images.dtype)
        into(out, images, filters, **options)
        return out

    def infer(images: TensorType, filters: TensorType, **options: tuple[int, ...]) -> TensorType:
        w = WindowedProduct(**options)
        image = [images.shape[a] for a in w.image_axes]
        extents = [filters.shape[a] for a in w.filter_axes]
        sizes = [image[0], extents[0]]
        for k, (step, dilation, margin) in enumerate(zip(w.steps, w.dilations, w.padding)):
            reach = add(mul(sub(extents[k + 2], 1), dilation), 1)
            padded = add(add(margin, image[k + 2]), margin)
            sizes.append(add(floordiv(sub(padded, reach), step), 1))
        order = [w.result_axes.index(a) for a in range(len(sizes))]
        return TensorType(images.dtype, tuple(sizes[a] for a in order))

    return ExternRow(name, f"a convolution by {library.title}", infer, call, into=into)


def _checked(name: str, function: Callable[..., object], *arguments: Any) -> None:
    """Call a library's function; raise its exceptions as ExternError."""
    try:
        function(*arguments)
    except Exception as error:
        raise ExternError(op=name, reason=str(error)) from error


_DTYPES = {d.numpy: d for d in DTYPES}


# ---- contractions that are matrix products -------------------------------------------------------


class ProductForm(NamedTuple):
    """A contraction as a stack of matrix products, with its sizes."""

    spec: str
    batch: Index
    rows: Index
    columns: Index
    terms: Index
    """Products that are added up for each result."""


def product_call(form: ProductForm, library: Provider) -> Extern:
    """Return the call of a library that computes a stack of matrix products."""
    return Extern(f"{library.name}_product", (("spec", form.spec),))


def convolution_call(window: WindowedProduct, library: Provider) -> Extern:
    """Return the call of a library that computes a convolution."""
    return Extern(f"{library.name}_convolution", tuple(window._asdict().items()))


def product_form(op: TensorOp, *inputs: TensorType) -> ProductForm | None:
    """Return an operator as a stack of matrix products; None if it is none.

    The result's axes are those of the stack, then rows, then columns, or columns before rows.
    """
    if not isinstance(op, Contract) or op.padded or op.packed or op.extents:
        return None
    out = op.infer(*inputs)
    if out.dtype not in DTYPES or any(x.dtype != out.dtype for x in inputs):
        return None
    terms = (*op.left, *op.right)
    if any(bare_axis(t) is None for t in terms):
        return None
    layout = _layout(op.spec())
    if not layout.is_product or op.is_short(tuple(op.axis_extents(*inputs)[k] for k in layout.sum)):
        return None
    sizes = op.axis_extents(*inputs)
    batch, rows, columns, summed = (
        product(tuple(sizes[n] for n in names))
        for names in (layout.batch, layout.rows, layout.columns, layout.sum)
    )
    return ProductForm(op.spec(), batch, rows, columns, summed)


class _Layout(NamedTuple):
    """How the operands of a contraction become stacks of matrices."""

    batch: tuple[str, ...]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    sum: tuple[str, ...]
    is_product: bool
    swapped: bool
    """Whether the right operand has the rows of the result."""
    first: tuple[int, ...]
    """The axes of the operand with the rows, as stack, rows and the summed axis."""
    second: tuple[int, ...]
    """The axes of the other operand, as stack, summed axis and columns."""

    def matrices(
        self, out: Array, left: Array, right: Array
    ) -> tuple[Array, Array, tuple[int, ...]]:
        """Return the stacks of matrices, and the shape of the result as one."""
        a, b = (right, left) if self.swapped else (left, right)
        a, b = a.transpose(self.first), b.transpose(self.second)
        stack = out.shape[: len(self.batch)]
        if len(self.rows) != 1:
            a = a.reshape(*stack, -1, a.shape[-1]) if a.size else _empty(a, stack, len(self.rows))
        shape = (*stack, a.shape[-2], b.shape[-1])
        return a, b, shape


def _empty(a: Array, stack: tuple[int, ...], rows: int) -> Array:
    """Return an operand without elements as a stack of matrices."""
    count = int(np.prod(a.shape[len(stack) : len(stack) + rows]))
    return np.empty((*stack, count, a.shape[-1]), a.dtype)


@lru_cache(maxsize=256)
def _layout(spec: str) -> _Layout:
    op = Contract.parse(spec)
    left, right = ([bare_axis(t) or "" for t in side] for side in (op.left, op.right))
    batch = tuple(n for n in op.out if n in left and n in right)
    of_left = tuple(n for n in op.out if n in left and n not in right)
    of_right = tuple(n for n in op.out if n in right and n not in left)
    swapped = op.out == (*batch, *of_right, *of_left) and bool(of_right)
    first, second = (right, left) if swapped else (left, right)
    rows, columns = (of_right, of_left) if swapped else (of_left, of_right)
    summed = tuple(n for n in left if n in right and n not in op.out)
    is_product = (
        op.out == (*batch, *rows, *columns)
        and len(set(left)) == len(left)
        and len(set(right)) == len(right)
        and set(left) | set(right) == {*batch, *rows, *columns, *summed}
        and (len(columns), len(summed)) == (1, 1)
        and bool(rows)
        # rows of several axes are one axis of memory if they follow one another
        and [first.index(n) for n in rows]
        == [*range(first.index(rows[0]), first.index(rows[-1]) + 1)]
    )
    if not is_product:
        return _Layout(batch, rows, columns, summed, False, swapped, (), ())
    order = [first.index(n) for n in (*batch, *rows, *summed)]
    other = [second.index(n) for n in (*batch, *summed, *columns)]
    return _Layout(batch, rows, columns, summed, True, swapped, tuple(order), tuple(other))


# ---- NumPy ---------------------------------------------------------------------------------------


def _numpy_matmul(out: Array, left: Array, right: Array) -> None:
    np.matmul(left, right, out=out)


@cache
def _openblas() -> Any:
    """Return the BLAS that is part of NumPy's wheels, or None."""
    folder = Path(np.__file__).parent.parent / "numpy.libs"
    for file in folder.glob("libscipy_openblas64_*"):
        library = ctypes.CDLL(str(file))  # loaded already: this is a reference to it
        if hasattr(library, "scipy_openblas_get_num_threads64_"):
            return library
    return None


def _openblas_threads() -> int | None:
    library = _openblas()
    return None if library is None else int(library.scipy_openblas_get_num_threads64_())


def _set_openblas_threads(threads: int) -> None:
    _openblas().scipy_openblas_set_num_threads64_(threads)


add_provider(Provider("numpy", "NumPy", _numpy_matmul, _openblas_threads, _set_openblas_threads))
