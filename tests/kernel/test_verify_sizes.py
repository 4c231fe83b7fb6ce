"""Kernels that are refused, or accepted, at the sizes of a call."""

from __future__ import annotations

import pytest
from tests.kernel.goldens import GOLDENS

from smelt.errors import KernelTextError, SmeltError, VerifyError
from smelt.kernel.text import parse
from smelt.kernel.verify_sizes import size_names, verify_sizes

HEAD = "kernel k(x: f32[n,d]) -> y: f32[n,d]\n"
BIG = 2**63 - 1
REFUSED = {
    "read behind": ("  grid n\n  y[n,d] = x[n + 1,d]", "can leave dimension 0"),
    "store behind": ("  grid n\n  y[n,d + 1] = x[n,d]", "can leave dimension 1"),
    "overflow": (f"  grid n\n  y[n,d] = x[n*{BIG},d]", "64-bit"),
    "overflow in a remainder": (f"  y[n,d] = x[(n*{BIG} + 1) % size(n),d]", "64-bit"),
    "overflow in a condition": (
        f"  y[n,d] = x[n - 1,d] if i64(n) * {BIG} > 0 else 0",
        "64-bit",
    ),
    "race": ("  grid n\n  y[0,d] = x[n,d]", "may store the same element"),
    "no store": ("  grid n", "0 of 20 elements"),
    "partial store": ("  y[n,d] = x[n,d] where n > 0", "16 of 20 elements"),
    "store by data": ("  y[n,d] = x[n,d] where x[n,d] > 0", "cannot be shown"),
    "partial stream": ("  stream n/2 from i64(1)\n    y[n,d] = x[n,d]", "16 of 20"),
    "division by zero": ("  y[n,d] = x[n,d] * f32(index(n//(size(d) - 4)))", "divisor"),
    "unknown size": ("  y[n,d] = x[n//size(q),d]", "size q follows from no array"),
    "unknown extent": (
        "  axis i in q\n  y[n,d] = x[n,d] + sum(f32(index(i)) over i)",
        "size q follows from no array",
    ),
    "chain": (
        "\n".join(
            [
                "  v0 = x[n,d]",
                *(f"  v{k + 1} = v{k} + 1" for k in range(2000)),
                "  y[n,d] = v2000",
            ]
        ),
        "chain of more than 512 operators",
    ),
    "fact": ("  require n > 9\n  y[n,d] = x[n,d]", "requires"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_at_sizes(case):
    body, reason = REFUSED[case]
    with pytest.raises(SmeltError, match=reason):
        verify_sizes(parse(HEAD + body), {"n": 5, "d": 4})


def test_strides_of_other_arrays_are_refused():
    kernel = parse("kernel k(x: f32[n] strides(7)) -> y: f32[n]\n  y[n] = x[n]")
    with pytest.raises(SmeltError, match="stride of 7"):
        verify_sizes(kernel, {"n": 5})


ACCEPTED = [
    ("kernel k(x: f32[m]) -> y: f32[n]\n  y[n] = x[n + 1]", {"m": 6, "n": 5}),
    (HEAD + "  y[n,d] = x[n,d] where n > 2\n  y[n,d] = 0 where n <= 2", {"n": 5, "d": 4}),
    (HEAD + "  y[n,d] = x[n,d]", {"n": 0, "d": 4}),
]


@pytest.mark.parametrize(("source", "sizes"), ACCEPTED)
def test_accepted_at_sizes(source, sizes):
    verify_sizes(parse(source), sizes)


def test_a_size_of_zero_is_no_size_of_one():
    kernel = parse("kernel k(x: f32[n], z: f32[m]) -> y: f32[m]\n  y[m] = x[0] + z[m]")
    verify_sizes(kernel, {"n": 1, "m": 3})
    with pytest.raises(VerifyError, match="index 0 can leave"):
        verify_sizes(kernel, {"n": 0, "m": 3})


@pytest.mark.parametrize("name", [n for n in GOLDENS if "for each" not in GOLDENS[n]])
@pytest.mark.parametrize("length", [2, 7, 100])
def test_goldens_are_accepted(name, length):
    kernel = parse(GOLDENS[name])
    verify_sizes(kernel, dict.fromkeys(size_names(kernel), length))


@pytest.mark.parametrize("body", ["1" * 10_000, "x[n] + x[" + "(" * 3000, "-" * 3000])
def test_endless_texts_are_refused(body):
    with pytest.raises(KernelTextError):
        parse(f"kernel k(x: f32[n]) -> y: f32[n]\n  y[n] = {body}")


def test_names_that_double_take_no_time():
    lines = [f"  v{k + 1} = v{k} * v{k}" for k in range(60)]
    source = "\n".join(["kernel k(x: f32[n]) -> y: f32[n]", "  v0 = i64(n)", *lines])
    verify_sizes(parse(f"{source}\n  y[n] = x[n] if v60 >= 0 else x[0]"), {"n": 5})
