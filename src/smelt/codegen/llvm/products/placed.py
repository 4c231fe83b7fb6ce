"""Products whose operands are packed place by place: which emitter serves which.

placed_emitter(home, nest, nest.product).run()
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from smelt.codegen.llvm.products.deep_product import DeepEmitter
from smelt.codegen.llvm.products.few_product import FewEmitter
from smelt.codegen.llvm.products.lying_stencil import LyingStencilEmitter
from smelt.codegen.llvm.products.stencil_product import StencilEmitter
from smelt.codegen.llvm.products.tall_product import TallEmitter
from smelt.codegen.llvm.products.turned_product import TurnedEmitter
from smelt.codegen.llvm.products.turned_stencil import TurnedStencilEmitter
from smelt.codegen.llvm.products.upright_product import UprightEmitter
from smelt.codegen.llvm.products.windowed_product import WindowedEmitter
from smelt.codegen.llvm.schedule.nests import Nest
from smelt.codegen.llvm.schedule.stencil import Stencil
from smelt.codegen.llvm.schedule.tall import Tall
from smelt.codegen.llvm.schedule.tasks import Placed
from smelt.codegen.llvm.schedule.windowed import Windowed

if TYPE_CHECKING:
    from smelt.codegen.llvm.nest import NestEmitter

PlacedEmitter = WindowedEmitter | StencilEmitter | UprightEmitter | TallEmitter


def placed_emitter(home: NestEmitter, nest: Nest, c: Placed) -> PlacedEmitter:
    """What emits a product in the task that `home` is emitting."""
    if isinstance(c, Windowed):
        return WindowedEmitter(home, nest, c)
    if isinstance(c, Tall):
        if c.few:
            return (TurnedEmitter if c.turned else FewEmitter)(home, nest, c)
        return (DeepEmitter if c.deep else TallEmitter)(home, nest, c)
    if isinstance(c, Stencil):
        if c.lies is not None:
            return LyingStencilEmitter(home, nest, c)
        return (StencilEmitter if c.lines is None else TurnedStencilEmitter)(home, nest, c)
    return UprightEmitter(home, nest, c)


__all__ = ["PlacedEmitter", "placed_emitter"]
