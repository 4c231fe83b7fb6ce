"""Epilogues that take the columns of a wide tile in halves, one after the other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.codegen.checked_triton import launch
from tests.codegen.test_triton_candidates import FORMS, H100, PRODUCT, product_arrays
from tests.codegen.test_triton_goldens import with_lanes

from smelt.codegen.triton.candidates import candidates
from smelt.codegen.triton.schedule import EXACT
from smelt.codegen.triton.source import print_file, print_stage
from smelt.kernel.text import parse


@pytest.mark.parametrize("form", ["rows", "two"])
def test_an_epilogue_in_halves_computes_the_bits_of_the_whole_one(form):
    kernel, sizes = parse(FORMS[form]), {"m": 130, "n": 136, "k": 48}
    arrays = product_arrays(kernel, sizes)
    (every,) = candidates(kernel, sizes, replace(H100, processors=1), EXACT)
    c = next(c for c in every if c.schedule.halved)
    assert "epilogue in halves" in c.blocks
    schedules = c.schedule, replace(c.schedule, halved="")
    sources = [print_file(kernel, [print_stage(c.launch, s)]) for s in schedules]
    assert [x.count("tl.split(") for x in sources] == [1 if form == "rows" else 2, 0]
    halves, whole = (launch(with_lanes(x, 64), arrays) for x in sources)
    for a, b in zip(halves, whole, strict=True):
        np.testing.assert_array_equal(a, b)


def test_an_epilogue_is_halved_where_it_computes_elements_of_wide_tiles():
    def halved(text, n=4096):
        (every,) = candidates(parse(text), {"m": 4096, "n": n, "k": 1024}, H100, EXACT)
        return {c.schedule.halved for c in every} - {""}

    assert halved(FORMS["rows"]) == {"n"}
    assert halved(PRODUCT) == halved(FORMS["whole rows"], 64) == halved(FORMS["rows"], 64) == set()
