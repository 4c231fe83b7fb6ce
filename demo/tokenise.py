"""Tokenise texts and batch them with little padding.

A batch is as long as its longest text. Texts are therefore sorted by length and cut into batches of
about equally many tokens, not equally many texts. The result depends on the lengths only, so that
every engine gets the same batches.

>>> [batch.rows for batch in make_batches([[1, 2], [1, 2, 3, 4], [1], [1, 2, 3]], budget=8)]
[(1, 3), (0, 2)]
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from demo import weights

LONGEST = 128
"""Maximum tokens of a text; the rest is cut off."""

BUDGET = 2048
"""Maximum tokens of a batch, padding included: enough for matrix products at full speed, few enough
for the intermediates of a layer to stay within a usual last-level cache."""

_FILE = "batches.npz"


class Batch(NamedTuple):
    """Texts of similar length, as the network takes them."""

    rows: tuple[int, ...]
    """The index of each text in the caller's order."""
    ids: NDArray[np.int64]
    """Token numbers [batch, length], 0 where padded."""
    mask: NDArray[np.bool_]
    """True at tokens [batch, length]."""


def tokenise(texts: Sequence[str]) -> list[list[int]]:
    """Return each text's token numbers, at most `LONGEST`, with start and end markers.

    Raises:
        MissingPackagesError: an optional package is not installed.
    """
    weights.require()
    from tokenizers import Tokenizer  # pyright: ignore[reportMissingImports]

    tokenizer = Tokenizer.from_file(str(weights.model_folder() / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(LONGEST)
    return [encoding.ids for encoding in tokenizer.encode_batch(list(texts))]


def make_batches(tokens: Sequence[Sequence[int]], *, budget: int = BUDGET) -> list[Batch]:
    """Return batches that contain each text once, longest texts first.

    Args:
        tokens: the token numbers of each text, none empty.
        budget: the maximum tokens of a batch, padding included; a longer text is a batch by itself.

    A single last text takes a neighbour from the batch before it: an engine that compiles for sizes
    may treat 1 as a special case.
    """
    order = sorted(range(len(tokens)), key=lambda row: (-len(tokens[row]), row))
    groups: list[list[int]] = []
    for row in order:
        if groups and (len(groups[-1]) + 1) * len(tokens[groups[-1][0]]) <= budget:
            groups[-1].append(row)
        else:
            groups.append([row])
    if len(groups) > 1 and len(groups[-1]) == 1 and len(groups[-2]) > 2:
        groups[-1].insert(0, groups[-2].pop())
    return [_pad(group, tokens) for group in groups]


def padding_share(batches: Sequence[Batch]) -> float:
    """Return the share of all positions that is padding, 0 to 1."""
    positions = sum(batch.mask.size for batch in batches)
    return 1.0 - sum(int(batch.mask.sum()) for batch in batches) / positions if positions else 0.0


def _pad(rows: Sequence[int], tokens: Sequence[Sequence[int]]) -> Batch:
    length = max(len(tokens[row]) for row in rows)
    ids = np.zeros((len(rows), length), dtype=np.int64)
    mask = np.zeros((len(rows), length), dtype=np.bool_)
    for place, row in enumerate(rows):
        ids[place, : len(tokens[row])] = tokens[row]
        mask[place, : len(tokens[row])] = True
    return Batch(tuple(rows), ids, mask)


def save_batches(batches: Sequence[Batch], folder: Path) -> None:
    """Write batches for `load_batches` in another process, as one file in `folder`."""
    arrays = {
        f"{field}{place}": np.asarray(getattr(batch, field))
        for place, batch in enumerate(batches)
        for field in Batch._fields
    }
    np.savez(folder / _FILE, allow_pickle=False, **arrays)


def load_batches(folder: Path) -> list[Batch]:
    """Read the batches that `save_batches` wrote into `folder`."""
    with np.load(folder / _FILE) as file:
        return [
            Batch(tuple(file[f"rows{place}"].tolist()), file[f"ids{place}"], file[f"mask{place}"])
            for place in range(len(file.files) // len(Batch._fields))
        ]
