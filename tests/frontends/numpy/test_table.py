"""Every public function of NumPy has a verdict, and those that work give NumPy's values."""

from __future__ import annotations

import warnings

import numpy  # noqa: ICN001 - `np` is either namespace
import pytest
from tests.frontends.numpy.samples import SAMPLES

import smelt.numpy as snp
from smelt.errors import UnsupportedError
from smelt.frontends.array.array import Array
from smelt.numpy.table import CLASSES, REFUSED, ROWS

FUNCTIONS = [
    name
    for name in dir(numpy)
    if not name.startswith("_")
    and callable(getattr(numpy, name))
    and not isinstance(getattr(numpy, name), type)
    and name not in CLASSES
]
"""NumPy's public functions."""

ELSEWHERE = {
    # Tested by what they change: elements in place, settings, files and other modules.
    "argpartition",
    "asmatrix",
    "bmat",
    "copyto",
    "fill_diagonal",
    "from_dlpack",
    "fromfile",
    "frompyfunc",
    "info",
    "load",
    "partition",
    "place",
    "printoptions",
    "put",
    "put_along_axis",
    "putmask",
    "save",
    "savetxt",
    "savez",
    "savez_compressed",
    "set_printoptions",
    "setbufsize",
    "seterr",
    "seterrcall",
    "show_config",
    "show_runtime",
}


def same(actual, expected, where):
    """Compare results: nested tuples, arrays within the rounding of float64, other objects."""
    if isinstance(expected, list) and isinstance(actual, Array):  # lists that NumPy gives back
        expected = numpy.asarray(expected)
    if isinstance(expected, (tuple, list)):
        assert len(actual) == len(expected), where
        for f, e in zip(actual, expected, strict=True):
            same(f, e, where)
        return
    if isinstance(expected, (numpy.ndarray, numpy.generic)):
        f = numpy.asarray(actual)
        assert f.shape == numpy.shape(expected), f"{where}: shape {f.shape}"
        assert f.dtype == expected.dtype, f"{where}: {f.dtype}, not {expected.dtype}"
        if expected.dtype.kind in "fc":
            tolerance = 1e-5 if expected.dtype.itemsize == 4 else 1e-10
            numpy.testing.assert_allclose(f, expected, tolerance, tolerance, err_msg=where)
        else:
            assert f.tolist() == expected.tolist(), where
        return
    assert actual == expected, where


def test_every_function_has_a_verdict():
    assert [name for name in FUNCTIONS if name not in ROWS] == []
    assert [name for name in ROWS if name not in FUNCTIONS] == []
    others = [n for n in dir(numpy) if not n.startswith("_") and n not in FUNCTIONS]
    assert [n for n in others if not hasattr(snp, n) and n not in REFUSED] == []


def test_at_least_330_functions_work_and_have_samples():
    working = [row.name for row in ROWS.values() if row.way != "refused"]
    assert len(working) >= 330
    assert [n for n in working if n not in SAMPLES and n not in ELSEWHERE] == []


@pytest.mark.parametrize("name", [n for n in ROWS if n in SAMPLES])
def test_values_are_those_of_numpy(name):
    for k, sample in enumerate(SAMPLES[name]):
        args, options = sample(numpy)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                expected = getattr(numpy, name)(*args, **options)
            except TypeError as error:
                pytest.skip(f"NumPy of this version: {error}") if k else None
                raise
            args, options = sample(snp)
            actual = getattr(snp, name)(*args, **options)
        if name == "unique_values":  # in any order
            actual, expected = numpy.sort(actual), numpy.sort(expected)
        same(actual, expected, f"{name}, sample {k}")


@pytest.mark.parametrize("name", [row.name for row in ROWS.values() if row.way == "refused"])
def test_refusals_say_what_to_write(name):
    with pytest.raises(UnsupportedError, match=rf"np\.{name}") as caught:
        getattr(snp, name)()
    assert ROWS[name].note in str(caught.value)
