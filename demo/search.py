"""Find the nearest passages to a question, by the cosine of their embeddings.

Embeddings have length one, so that the cosine is a matrix product.

>>> import numpy as np
>>> from demo.corpus import Passage
>>> passages = [Passage("csv", "Read rows."), Passage("math", "Add numbers.")]
>>> index = Index(passages, np.eye(2, dtype=np.float32))
>>> index.nearest(np.asarray([0.1, 0.9], dtype=np.float32), 1)[0].passage.name
'math'
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from demo.corpus import Passage

QUESTIONS = (
    "read a csv file",
    "how do I measure how long my code takes",
    "run another program and capture its output",
    "parse command line arguments",
    "split a path into folder and file name",
    "wait for several coroutines at once",
)
"""Default questions of the demo."""


class Answer(NamedTuple):
    """A passage and its cosine: 1 is the same direction, 0 nothing in common."""

    score: float
    passage: Passage


class Index:
    """Passages with their embeddings.

    Args:
        passages: the texts.
        embeddings: float32 [passages, hidden], rows of length one.

    Raises:
        ValueError: the numbers of embeddings and passages differ.
    """

    def __init__(self, passages: Sequence[Passage], embeddings: NDArray[np.float32]) -> None:
        if embeddings.ndim != 2 or len(passages) != embeddings.shape[0]:
            raise ValueError(
                f"{len(passages)} passages need as many rows of embeddings, "
                f"got an array of shape {embeddings.shape}"
            )
        self._passages = list(passages)
        self._embeddings = embeddings

    def nearest(self, question: NDArray[np.float32], count: int = 3) -> list[Answer]:
        """Return the `count` passages nearest to an embedded question, best first.

        Of equal scores the earlier passage comes first.
        """
        scores = self._embeddings @ question
        best = np.argsort(-scores, kind="stable")[:count]
        return [Answer(float(scores[row]), self._passages[row]) for row in best]
