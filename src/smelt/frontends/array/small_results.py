"""Hand small results to NumPy's users as NumPy's own arrays and scalars.

A result as small as `SMELT_SMALL_ELEMENTS` of float64, which `smelt.numpy` sets as the limit, is
computed when it is made: a mean is a `numpy.float64`, a sum over rows a `numpy.ndarray`.  The code
that asks has NumPy's rules (see `module_rules`); recordings and the array API front end keep arrays
of ours.

Where operators wait, one program computes the result and every array that waits for an operator
behind it, which is stored.  What waits for others keeps waiting, so that it may fuse with its
readers.  A full reduction ends a pass over memory in any case: its readers begin the next one.

>>> hand_out((1.5, None), ())
(1.5, None)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from smelt.frontends.array.at_once import release
from smelt.frontends.array.evaluate_pending import evaluate
from smelt.frontends.array.operators import Operators
from smelt.frontends.array.value import STATE, private_data


def hand_out(result: Any, arguments: Iterable[Any]) -> Any:
    """Return a function's result with NumPy's arrays in place of small ones, but for arguments."""
    if isinstance(result, Operators):
        is_ours = not result.is_small or any(_has(x, result) for x in arguments)
        return result if is_ours else result.handed_out()
    if isinstance(result, tuple):
        items = [hand_out(x, arguments) for x in result]
        return type(result)(*items) if hasattr(result, "_fields") else tuple(items)
    return [hand_out(x, arguments) for x in result] if result.__class__ is list else result


def _has(argument: Any, result: Any) -> bool:
    """Return whether a result is an argument, or an item of one, as of `out`."""
    return argument is result or (
        argument.__class__ is tuple and any(item is result for item in argument)
    )


def is_view(x: Any) -> bool:
    """Return whether an array shares elements with one that owns them."""
    place = x.place
    return place is not None and bool(place.links or place.memory.owner() is not x)


def in_order(data: Any, order: Sequence[int]) -> Any:
    """Return a copy whose axes have an order in memory, from the outermost on."""
    inverse = [order.index(axis) for axis in range(len(order))]
    copy = np.empty_like(np.empty_like(data.transpose(order), order="C").transpose(inverse))
    copy[...] = data
    return copy


def numpys_own(x: Any) -> Any:
    """Return a small array of ours as NumPy's own, in memory that nobody else sees.

    Views stay as they are, and so do arrays of a dtype that NumPy does not have.  Memory of other
    code is shared with it.
    """
    place, node = x.place, x.node
    if is_view(x):
        return x
    if STATE.following or STATE.tracing or node.type.dtype.numpy.kind == "V":
        return x
    if node.data is None:
        evaluate(node, others=False)
    if not node.type.shape:
        return node.current_buffer()[()]
    if place is not None and place.memory.is_held and node.shared:
        return place.export()
    if place is not None and place.memory.order is not None:
        return in_order(node.current_buffer(), place.memory.order)
    data = private_data(node, 2)  # the array's reference, and the one here
    if data is None:
        return np.array(node.current_buffer(), order="C")
    release(node.type, data)
    return data
