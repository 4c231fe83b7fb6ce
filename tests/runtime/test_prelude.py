"""Values kept between calls: as data, by identity, for as long as they are valid."""

from __future__ import annotations

import gc
import json

import numpy as np
import pytest

from smelt.compiler import driver
from smelt.graph.text import parse
from smelt.knobs import config
from smelt.machine.target import Target
from smelt.runtime import prelude
from smelt.runtime.executable_format import Recipe

SOURCE = """graph f(x: f32[n,60], w: f32[230,60] constant, s: f32[230,1] constant) {
  e = mul(w, s)
  c = contract(x, e) {spec="m,k; j,k -> m,j"}
  return c
}"""
RNG = np.random.default_rng(8)


class Owner:
    """Something that owns a constant."""

    def __init__(self, shape):
        self.data = RNG.standard_normal(shape).astype(np.float32)


@pytest.fixture
def compiled_function():
    prelude.clear()
    gc.collect()
    with config(constants_extra=None):
        yield driver.compile(parse(SOURCE), hints={"n": 70})


PANEL = 2 * Target.host().lanes(4)
HELD = 4 * 60 * -(-230 // PANEL) * PANEL
"""Bytes of 230 rows of 60 numbers in whole panels, two vectors wide."""


def run(compiled_function, owners, stamps=(0, 0), **options):
    x = RNG.standard_normal((70, 60)).astype(np.float32)
    arrays = [x, *(o.data for o in owners)]
    held = compiled_function.executable.prelude.run(owners, stamps, arrays.__getitem__, **options)
    (actual,) = compiled_function.run(arrays, (70,), None, held)
    return held, np.allclose(actual, x @ (arrays[1] * arrays[2]).T, rtol=1e-4, atol=1e-4)


def owners():
    return Owner((230, 60)), Owner((230, 1))


def test_a_recipe_with_a_prelude_reads_back(compiled_function):
    facts = json.loads(json.dumps(compiled_function.recipe.to_data()))
    (part,) = Recipe.from_data(facts).parts
    assert part.key == compiled_function.recipe.parts[0].key
    assert (part.sources, part.nbytes, part.computed, part.packed) == ((1, 2), HELD, 1, 1)


def test_equal_owners_and_stamps_are_one_run(compiled_function):
    inputs = owners()
    held, right = run(compiled_function, inputs)
    again, right_again = run(compiled_function, inputs)
    assert held is again and right and right_again


def test_a_stamp_or_another_owner_is_another_run(compiled_function):
    inputs = owners()
    held, _ = run(compiled_function, inputs)
    inputs[0].data += 1
    assert not run(compiled_function, inputs)[1], "nothing told that it changed"
    other, right = run(compiled_function, inputs, (1, 0))
    assert other is not held and right
    assert run(compiled_function, (Owner((230, 60)), inputs[1]))[1]


def test_what_is_watched_needs_no_stamp(compiled_function):
    inputs = owners()
    held, _ = run(compiled_function, inputs, watched=True)
    assert run(compiled_function, inputs, watched=True)[0] is held
    inputs[1].data *= 2
    again, right = run(compiled_function, inputs, watched=True)
    assert again is not held and right


def test_strided_constants_are_watched_too():
    base = np.arange(600, dtype=np.float32).reshape(20, 30)
    watch = prelude._Samples(base[::2, 3:])
    assert watch.same()
    base[0, :3] = -1  # outside
    assert watch.same()
    base[18, 29] = -1
    assert not watch.same()
    assert prelude._Samples(np.zeros((0, 3), np.float32)).same()


@pytest.mark.parametrize("order", ["C", "F"])
def test_every_element_is_looked_at_in_turn(order):
    a = np.asarray(RNG.standard_normal((70, 300)).astype(np.float32), order=order)
    run = prelude.Run([], (), [(a, prelude._Checksums(a))])
    assert run.check_period == -(-a.nbytes // prelude.CHECKSUM_BYTES) > 1
    for _ in range(2 * run.check_period):
        assert run.unchanged()
    for at in ((0, 1), (35, 151), (69, 298)):
        before = a[at]
        a[at] = before + 1
        assert not all(run.unchanged() for _ in range(run.check_period))
        a[at] = before
        assert all(run.unchanged() for _ in range(run.check_period))
    assert prelude._Checksums(a[::2, ::3]).sums == ()
    assert prelude._Checksums(np.zeros((0, 3), np.float32)).sums == ()


def test_runs_die_with_the_first_of_their_owners(compiled_function):
    first, second = owners()
    run(compiled_function, (first, second))
    assert prelude.held_bytes() == HELD
    del second
    assert prelude.held_bytes() == 0  # at once: nothing waits for the collector


def test_runs_die_with_their_plan(compiled_function):
    inputs = owners()
    plan = driver.compile(parse(SOURCE.replace("mul", "add")), hints={"n": 70})
    arrays = [None, *(o.data for o in inputs)]
    plan.executable.prelude.run(inputs, (0, 0), arrays.__getitem__)
    assert prelude.held_bytes()
    del plan
    gc.collect()
    assert prelude.held_bytes() == 0


def test_everything_can_be_forgotten(compiled_function):
    inputs = owners()
    held, _ = run(compiled_function, inputs)
    prelude.clear()
    inputs[0].data += 1
    again, right = run(compiled_function, inputs)
    assert right and again is not held
