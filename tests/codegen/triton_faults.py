"""Plant faults into printed Triton programs, one at a time.

Each change takes a node of a program's syntax tree and makes one mistake that a printer could
make. It returns whether it applies to the node.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from tests.codegen.checked_triton import CheckError, launch

Change = Callable[[ast.AST], bool]


def survivors(
    source: str, arrays: Sequence[Any], is_meant: Callable[[str], bool]
) -> tuple[int, list[str]]:
    """How many faults of a kind are planted, and those that nothing notices."""
    right = launch(source, arrays)
    planted, missed = 0, list[str]()
    for what, wrong in plant(source, is_meant):
        try:
            with np.errstate(all="ignore"):
                results = launch(wrong, arrays)
        except CheckError:
            planted += 1
            continue
        except (ValueError, TypeError, IndexError):  # Triton would not compile it
            continue
        planted += 1
        if all(np.array_equal(a, b) for a, b in zip(results, right, strict=True)):
            missed.append(what)
    return planted, missed


def plant(
    source: str, is_meant: Callable[[str], bool] = lambda what: True
) -> Iterator[tuple[str, str]]:
    """Programs with one fault each, and what it is, of the faults that are meant."""
    tree = ast.parse(source)
    functions = [n for n in tree.body if getattr(n, "name", "").startswith(("kernel_", "combine_"))]
    for function in functions:
        for k, node in enumerate(ast.walk(function)):
            for name, change in CHANGES.items():
                if not change(copy.deepcopy(node)):
                    continue
                line = f"{function.name}:{getattr(node, 'lineno', 0)}"
                shown = ast.unparse(node).partition("\n")[0]
                what = f"{name} [{line} {shown}]"
                if not is_meant(what):
                    continue
                planted = copy.deepcopy(tree)
                inside = next(n for n in planted.body if getattr(n, "name", "") == function.name)
                changed = list(ast.walk(inside))[k]
                change(changed)
                yield what, ast.unparse(planted)


def is_call(node: ast.AST, *names: str) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) in names


def without_mask(node: ast.AST) -> bool:
    """An access of lanes that do not exist."""
    if not is_call(node, "tl.load", "tl.store", "tl.atomic_add", "tl.atomic_max", "tl.atomic_min"):
        return False
    kept = [a for a in node.keywords if a.arg not in ("mask", "other")]
    changed = len(kept) < len(node.keywords)
    node.keywords = kept
    return changed


def without_fill(node: ast.AST) -> bool:
    """Lanes that are read although nothing fills them."""
    if not is_call(node, "tl.load") or not any(a.arg == "other" for a in node.keywords):
        return False
    node.keywords = [a for a in node.keywords if a.arg != "other"]
    return True


def is_padding(node: ast.AST) -> bool:
    """A `where` that gives lanes that do not exist a constant."""
    return (
        is_call(node, "tl.where")
        and ast.unparse(node.args[0]).startswith("in_")
        and isinstance(node.args[2], (ast.Constant, ast.Call))
    )


def without_where(node: ast.AST) -> bool:
    if not is_padding(node):
        return False
    node.func, node.args = ast.parse("(lambda x: x)", mode="eval").body, [node.args[1]]
    return True


def wrong_identity(node: ast.AST) -> bool:
    """Lanes that do not exist count as another element."""
    if not is_padding(node):
        return False
    is_constant = isinstance(node.args[2], ast.Constant)
    text = "3" if is_constant and isinstance(node.args[2].value, int) else "3.0"
    if is_constant and isinstance(node.args[2].value, bool):
        text = str(not node.args[2].value)
    if is_call(node.args[2], "tl.full"):
        node.args[2].args[1] = ast.parse(text, mode="eval").body
    else:
        node.args[2] = ast.parse(text, mode="eval").body
    return True


def one_too_far(node: ast.AST) -> bool:
    """A bound that admits the first index outside."""
    if not isinstance(node, ast.Compare) or not ast.unparse(node).lstrip("(").startswith("i_"):
        return False
    if not isinstance(node.ops[0], ast.Lt):
        return False
    node.ops = [ast.LtE()]
    return True


def one_too_few(node: ast.AST) -> bool:
    """A bound that excludes the last index."""
    if not isinstance(node, ast.Compare) or not ast.unparse(node).lstrip("(").startswith("i_"):
        return False
    if not isinstance(node.ops[0], ast.Lt):
        return False
    right = ast.unparse(node.comparators[0])
    node.comparators = [ast.parse(f"{right} - 1", mode="eval").body]
    return True


def shifted_offset(node: ast.AST) -> bool:
    """The next element of an array."""
    if not is_call(node, "tl.load", "tl.store") or not isinstance(node.args[0], ast.BinOp):
        return False
    node.args[0] = ast.parse(f"{ast.unparse(node.args[0])} + 1", mode="eval").body
    return True


def is_copy(node: ast.AST) -> bool:
    """A block that a tensor descriptor loads or stores."""
    if not isinstance(node, ast.Call):
        return False
    name = ast.unparse(node.func)
    return name.startswith("desc_") and name.endswith((".load", ".store"))


def other_block(node: ast.AST) -> bool:
    """A copy that begins one element too late along its first axis."""
    if not is_copy(node):
        return False
    starts = node.args[0]
    starts.elts[0] = ast.parse(f"{ast.unparse(starts.elts[0])} + 1", mode="eval").body
    return True


def swapped_starts(node: ast.AST) -> bool:
    """A copy whose indices are in another order."""
    if not is_copy(node):
        return False
    node.args[0].elts[-2:] = reversed(node.args[0].elts[-2:])
    return True


def other_extent(node: ast.AST) -> bool:
    """A tensor descriptor of an array with one row less."""
    if not is_call(node, "tl.make_tensor_descriptor"):
        return False
    extents = node.args[1]
    extents.elts[-2] = ast.parse(f"{ast.unparse(extents.elts[-2])} - 1", mode="eval").body
    return True


def longer_rows(node: ast.AST) -> bool:
    """A tensor descriptor whose rows are as long as 8 more elements."""
    if not is_call(node, "tl.make_tensor_descriptor"):
        return False
    strides = node.args[2]
    strides.elts[-2] = ast.parse(f"{ast.unparse(strides.elts[-2])} - 8", mode="eval").body
    return True


def every_program(node: ast.AST) -> bool:
    """A walk over blocks that visits the next one, which another program computes."""
    if not is_call(node, "tl.num_programs"):
        return False
    node.func, node.args = ast.Name("int"), [ast.Constant(1)]
    return True


def first_element(node: ast.AST) -> bool:
    """A factor of an index expression that is missing."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult):
        return False
    if "i_" not in ast.unparse(node) or "BLOCK" in ast.unparse(node) or "." in ast.unparse(node):
        return False
    node.op, node.right = ast.Add(), ast.Constant(0)
    return True


def without_block(node: ast.AST) -> bool:
    """Blocks that begin one after another."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult):
        return False
    if not ast.unparse(node.right).startswith("BLOCK_"):
        return False
    node.right = ast.Constant(1)
    return True


def stored_twice(node: ast.AST) -> bool:
    if not isinstance(node, ast.FunctionDef | ast.For | ast.If):
        return False
    for k, s in enumerate(node.body):
        if isinstance(s, ast.Expr) and is_call(s.value, "tl.store", "tl.atomic_add"):
            node.body.insert(k, copy.deepcopy(s))
            return True
    return False


def never_stored(node: ast.AST) -> bool:
    if not is_call(node, "tl.store", "tl.atomic_add", "tl.atomic_max", "tl.atomic_min"):
        return False
    node.func, node.args, node.keywords = ast.Name("tuple"), [], []
    return True


def other_order(node: ast.AST) -> bool:
    """The program's number taken apart along the wrong axis."""
    if not isinstance(node, ast.BinOp) or ast.unparse(node.left) != "program":
        return False
    if not isinstance(node.op, ast.Mod | ast.FloorDiv):
        return False
    node.op = ast.FloorDiv() if isinstance(node.op, ast.Mod) else ast.Mod()
    return True


def late_start(node: ast.AST) -> bool:
    """A loop that leaves out its first step."""
    if not is_call(node, "tl.range"):
        return False
    step = "1" if len(node.args) < 3 else ast.unparse(node.args[2])
    node.args[0] = ast.parse(f"{ast.unparse(node.args[0])} + {step}", mode="eval").body
    return True


def early_stop(node: ast.AST) -> bool:
    """A loop that leaves out its last step."""
    if not is_call(node, "tl.range"):
        return False
    step = "1" if len(node.args) < 3 else ast.unparse(node.args[2])
    node.args[1] = ast.parse(f"{ast.unparse(node.args[1])} - {step}", mode="eval").body
    return True


def not_carried(node: ast.AST) -> bool:
    """A state that keeps its old value."""
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Name):
        return False
    if not ast.unparse(node.targets[0]).startswith("s_") or not node.value.id.startswith("n_"):
        return False
    node.value.id = "s_" + node.value.id[2:]
    return True


def other_axis(node: ast.AST) -> bool:
    """A reduction along another axis."""
    if not is_call(node, "tl.sum", "tl.reduce", "tl.associative_scan"):
        return False
    node.args[1] = ast.parse(f"{ast.unparse(node.args[1])} ^ 1", mode="eval").body
    return True


def other_matrix(node: ast.AST) -> bool:
    """A batch of matrices that are multiplied by one another's operands."""
    if not is_call(node, "tl.dot"):
        return False
    left = ast.unparse(node.args[0])
    reversed_batch = (
        f"(lambda x: type(x)(x.data[::-1], x.defined[::-1]) if x.data.ndim > 2 else x)({left})"
    )
    node.args[0] = ast.parse(reversed_batch, mode="eval").body
    return True


def not_transposed(node: ast.AST) -> bool:
    if not is_call(node, "tl.trans", "tl.permute"):
        return False
    node.func = ast.parse("(lambda x, *axes: x)", mode="eval").body
    return True


def swapped_operands(node: ast.AST) -> bool:
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Sub):
        return False
    node.left, node.right = node.right, node.left
    return True


def nan_is_lost(node: ast.AST) -> bool:
    """A test for NaN that never holds."""
    if not isinstance(node, ast.Compare) or not isinstance(node.ops[0], ast.NotEq):
        return False
    if ast.unparse(node.left) != ast.unparse(node.comparators[0]):
        return False
    node.ops = [ast.Lt()]
    return True


def other_side(node: ast.AST) -> bool:
    """A choice between values the wrong way round."""
    if not is_call(node, "tl.where") or is_padding(node):
        return False
    node.args[1], node.args[2] = node.args[2], node.args[1]
    return True


def other_compare(node: ast.AST) -> bool:
    """A comparison in a reduction that lets ties through or keeps them out."""
    opposite = {ast.Gt: ast.Lt, ast.Lt: ast.Gt, ast.GtE: ast.LtE, ast.LtE: ast.GtE}
    if not isinstance(node, ast.Compare) or type(node.ops[0]) not in opposite:
        return False
    if ast.unparse(node).lstrip("(").startswith("i_"):
        return False
    node.ops = [opposite[type(node.ops[0])]()]
    return True


def without_barrier(node: ast.AST) -> bool:
    if not is_call(node, "tl.debug_barrier"):
        return False
    node.func = ast.Name("tuple")
    return True


def always(node: ast.AST) -> bool:
    """A condition of a block that is ignored."""
    if not isinstance(node, ast.If):
        return False
    node.test = ast.Constant(True)
    return True


CHANGES: dict[str, Change] = {
    "no mask": without_mask,
    "no fill": without_fill,
    "no where": without_where,
    "wrong identity": wrong_identity,
    "a bound too far": one_too_far,
    "a bound too near": one_too_few,
    "next element": shifted_offset,
    "a stride is lost": first_element,
    "blocks overlap": without_block,
    "stored twice": stored_twice,
    "never stored": never_stored,
    "program order": other_order,
    "late start": late_start,
    "early stop": early_stop,
    "state not carried": not_carried,
    "other axis": other_axis,
    "not transposed": not_transposed,
    "other matrix": other_matrix,
    "swapped operands": swapped_operands,
    "no NaN rule": nan_is_lost,
    "other side": other_side,
    "other comparison": other_compare,
    "no barrier": without_barrier,
    "no condition": always,
    "next block": other_block,
    "indices swapped": swapped_starts,
    "a row less": other_extent,
    "longer rows": longer_rows,
    "every block": every_program,
}
