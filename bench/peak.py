"""Measure the peak memory of a model's call, beyond its parameters and inputs.

Eager code is traced operator by operator: every storage that a result allocates counts until it is
freed; temporary memory inside operators does not. Smelt allocates from one pool, whose peak is
read; arrays that are kept between calls (packed constants) count.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from importlib import import_module
from typing import Any

from smelt.runtime.memory import STOCK

__all__ = ["eager_peak", "smelt_peak"]


def eager_peak(call: Callable[[], Any]) -> int:
    """Return the peak bytes of the storages that PyTorch's operators allocate in `call`.

    >>> torch = import_module("torch")
    >>> x = torch.zeros(1000)
    >>> eager_peak(lambda: (x + 1).sum())
    4004
    """
    torch = import_module("torch")
    modes = import_module("torch.utils._python_dispatch")
    addresses: set[int] = set()
    live = peak = 0

    def on_free(address: int, nbytes: int) -> None:
        nonlocal live
        addresses.discard(address)
        live -= nbytes

    def count(tensor: Any, allocated: bool) -> None:
        nonlocal live, peak
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        if not address or address in addresses:
            return
        addresses.add(address)
        if allocated:
            live += storage.nbytes()
            peak = max(peak, live)
            weakref.finalize(storage, on_free, address, storage.nbytes())

    class Watch(modes.TorchDispatchMode):
        def __torch_dispatch__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            leaves = torch.utils._pytree.tree_leaves
            for operand in leaves((args, kwargs)):
                if isinstance(operand, torch.Tensor):
                    count(operand, allocated=False)
            result = function(*args, **(kwargs or {}))
            for output in leaves(result):
                if isinstance(output, torch.Tensor):
                    count(output, allocated=True)
            return result

    with Watch():
        call()
    return peak


def smelt_peak(call: Callable[[], Any], before: int) -> int:
    """Return the peak bytes of Smelt's blocks in `call`, minus the bytes `before` compilation."""
    STOCK.forget_peak()
    call()
    return STOCK.usage().requested_peak - before
