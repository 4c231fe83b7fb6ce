"""Inputs of `smelt explain` and `smelt run`: sizes, types, arrays from files.

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

Array = np.ndarray[Any, Any]

SOURCE = click.File(encoding="utf-8-sig")
"""The type of an argument that is a file with a program's text, or - for stdin."""
DEFAULT_SIZE = 1024
"""Default of a size that the user does not set."""


def pairs_of_options(options: Iterable[str], option: str, what: str) -> dict[str, str]:
    """Parse `name=value` options into a dict; raise click's BadParameter for others."""
    result: dict[str, str] = {}
    for text in options:
        name, equals, value = text.partition("=")
        if not equals or not name.strip() or not value.strip():
            raise click.BadParameter(f"{text!r} is not {what}", param_hint=option)
        result[name.strip()] = value.strip()
    return result


def sizes_of_options(options: Iterable[str]) -> dict[str, int]:
    """Parse `--size n=1000` options; raise click's BadParameter for an invalid size."""
    result: dict[str, int] = {}
    for name, value in pairs_of_options(options, "--size", "NAME=NUMBER").items():
        digits = value.replace("_", "")
        if not digits.isdigit():
            raise click.BadParameter(f"{value!r} is not a number >= 0", param_hint=f"--size {name}")
        result[name] = int(digits)
    return result


def read_source(source: TextIO) -> str:
    """Read the text of a program; raise click's UsageError for an unreadable file."""
    try:
        return source.read()
    except OSError as error:
        raise click.UsageError(f"{source.name}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise click.UsageError(
            f"{source.name} is not text: byte {error.start} is {error.object[error.start]:#04x}, "
            "which is not UTF-8"
        ) from None


def fill_missing_sizes(sizes: Mapping[str, int], names: Iterable[str]) -> dict[str, int]:
    """Return sizes for all names; missing ones get the default size, which is printed."""
    result = dict(sizes)
    missing = [n for n in dict.fromkeys(names) if n not in result]
    if missing:
        words = ", ".join(f"{n}={DEFAULT_SIZE}" for n in missing)
        click.echo(f"sizes that were not given: {words} (see --size)", err=True)
    return result | dict.fromkeys(missing, DEFAULT_SIZE)


def read_array(path: str, tensor: TensorType) -> Array:
    """Read an array from a .npy file, and check its dtype and rank.

    Raises click's BadParameter for a file that is unreadable or does not fit.
    """
    try:
        array = np.asarray(np.load(Path(path), allow_pickle=False))
    except (OSError, ValueError) as error:
        raise click.BadParameter(f"{path}: {error}", param_hint="--input") from None
    if array.dtype.kind == "V" and array.dtype.itemsize == tensor.dtype.itemsize:
        array = array.view(tensor.dtype.numpy)  # bfloat16: NumPy's format does not know its name
    if array.dtype != tensor.dtype.numpy or array.ndim != len(tensor.shape):
        raise click.BadParameter(
            f"{path} holds {array.dtype}{list(array.shape)}, not {tensor}", param_hint="--input"
        )
    return np.ascontiguousarray(array)
