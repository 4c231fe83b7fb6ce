"""What `smelt explain` and `smelt run` are given: sizes, types, arrays from files.

>>> sizes_of_options(("n=1000", "m=4"))
{'n': 1000, 'm': 4}
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TextIO

import click
import numpy as np

from smelt.types.tensor import TensorType

__all__ = [
    "SOURCE",
    "Array",
    "complete",
    "pairs_of_options",
    "read_array",
    "read_source",
    "sizes_of_options",
]

Array = np.ndarray[Any, Any]

SOURCE = click.File(encoding="utf-8-sig")
"""The type of an argument that is a file with a program's text, or - for stdin."""
USUAL_SIZE = 1024
"""Of a size that nobody gives."""


def pairs_of_options(given: Iterable[str], option: str, what: str) -> dict[str, str]:
    """`name=value` options as a dict.  Raises click's BadParameter for anything else."""
    found: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name.strip() or not value.strip():
            raise click.BadParameter(f"{text!r} is not {what}", param_hint=option)
        found[name.strip()] = value.strip()
    return found


def sizes_of_options(given: Iterable[str]) -> dict[str, int]:
    """`--size n=1000` options.  Raises click's BadParameter for what is no size."""
    found: dict[str, int] = {}
    for name, value in pairs_of_options(given, "--size", "NAME=NUMBER").items():
        digits = value.replace("_", "")
        if not digits.isdigit():
            raise click.BadParameter(f"{value!r} is not a number >= 0", param_hint=f"--size {name}")
        found[name] = int(digits)
    return found


def read_source(source: TextIO) -> str:
    """The text of a program.  Raises click's UsageError for a file that is none."""
    try:
        return source.read()
    except OSError as error:
        raise click.UsageError(f"{source.name}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise click.UsageError(
            f"{source.name} is no text: byte {error.start} is {error.object[error.start]:#04x}, "
            "which is not UTF-8"
        ) from None


def complete(sizes: Mapping[str, int], names: Iterable[str]) -> dict[str, int]:
    """Sizes for all names; those that were not given get the usual size, which is told."""
    found = dict(sizes)
    missing = [n for n in dict.fromkeys(names) if n not in found]
    if missing:
        words = ", ".join(f"{n}={USUAL_SIZE}" for n in missing)
        click.echo(f"sizes that were not given: {words} (see --size)", err=True)
    return found | dict.fromkeys(missing, USUAL_SIZE)


def read_array(path: str, tensor: TensorType) -> Array:
    """An array from a .npy file, checked against a type's dtype and rank.

    Raises click's BadParameter for a file that is none or does not fit.
    """
    try:
        found = np.asarray(np.load(Path(path), allow_pickle=False))
    except (OSError, ValueError) as error:
        raise click.BadParameter(f"{path}: {error}", param_hint="--input") from None
    if found.dtype.kind == "V" and found.dtype.itemsize == tensor.dtype.itemsize:
        found = found.view(tensor.dtype.numpy)  # bfloat16: NumPy's format does not know its name
    if found.dtype != tensor.dtype.numpy or found.ndim != len(tensor.shape):
        raise click.BadParameter(
            f"{path} holds {found.dtype}{list(found.shape)}, not {tensor}", param_hint="--input"
        )
    return np.ascontiguousarray(found)
