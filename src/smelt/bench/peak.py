"""The most memory that a call of a model holds at once, beyond its parameters and inputs.

Eager code is watched operator by operator: every storage that a result brings is counted until it
is freed, which leaves out what operators need inside.  Smelt's own memory all comes from one stock,
whose highest mark is asked for; arrays that are kept between calls (packed constants) count.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from importlib import import_module
from typing import Any

from smelt.runtime.memory import STOCK

__all__ = ["eager_peak", "smelt_peak"]


def eager_peak(call: Callable[[], Any]) -> int:
    """Bytes of the storages that PyTorch's operators make in `call`, at their highest.

    >>> torch = import_module("torch")
    >>> x = torch.zeros(1000)
    >>> eager_peak(lambda: (x + 1).sum())
    4004
    """
    torch = import_module("torch")
    modes = import_module("torch.utils._python_dispatch")
    known: set[int] = set()
    live = peak = 0

    def freed(address: int, nbytes: int) -> None:
        nonlocal live
        known.discard(address)
        live -= nbytes

    def met(tensor: Any, fresh: bool) -> None:
        nonlocal live, peak
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        if not address or address in known:
            return
        known.add(address)
        if fresh:
            live += storage.nbytes()
            peak = max(peak, live)
            weakref.finalize(storage, freed, address, storage.nbytes())

    class Watch(modes.TorchDispatchMode):
        def __torch_dispatch__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            leaves = torch.utils._pytree.tree_leaves
            for given in leaves((args, kwargs)):
                if isinstance(given, torch.Tensor):
                    met(given, fresh=False)
            found = function(*args, **(kwargs or {}))
            for made in leaves(found):
                if isinstance(made, torch.Tensor):
                    met(made, fresh=True)
            return found

    with Watch():
        call()
    return peak


def smelt_peak(call: Callable[[], Any], before: int) -> int:
    """Bytes of Smelt's blocks in `call`, at their highest, beyond the `before` that had been
    asked for when the program was not compiled yet."""
    STOCK.forget_peak()
    call()
    return STOCK.usage().asked_peak - before
