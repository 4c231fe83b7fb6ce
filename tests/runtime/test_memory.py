"""Blocks come back warm, never overlap, and the stock keeps its cap."""

from __future__ import annotations

import gc
import random
import threading
import time

import ml_dtypes
import numpy as np
import pytest

from smelt import knobs
from smelt.errors import OutOfMemory
from smelt.runtime import memory
from smelt.runtime.memory import HUGE_PAGE, HUGE_PAGE_MIN_BYTES, STOCK, Block, Slab, Stock, allocate

MB = 1 << 20


@pytest.mark.parametrize("nbytes", [0, 1, 63, 64, 65, 1000, 4096, 100_000, MB, 3 * MB + 7, 5 * MB])
def test_a_block_is_aligned_writable_and_long_enough(nbytes: int) -> None:
    block = allocate(nbytes)
    assert isinstance(block, Block)
    assert block.nbytes == nbytes
    assert block.address % 64 == 0
    if nbytes >= HUGE_PAGE_MIN_BYTES:
        assert block.address % HUGE_PAGE == 0
    array = block.array((nbytes,), np.uint8)
    assert array.ctypes.data == block.address
    array[...] = 7
    assert (array == 7).all()


def test_size_classes_waste_at_most_an_eighth() -> None:
    for nbytes in [*range(1, 5000), *(random.Random(1).randrange(1 << 40) for _ in range(2000))]:
        capacity = memory.size_class(nbytes)
        assert nbytes <= capacity
        assert capacity <= max(64, nbytes + 63, nbytes * 9 // 8 + 1)
        assert memory.size_class(capacity) == capacity
        assert capacity % 64 == 0


def test_arrays_of_every_kind() -> None:
    block = allocate(4096)
    assert block.array((), np.float32).shape == ()
    assert block.array((0, 5), np.float64).size == 0
    assert block.array((8, 8), ml_dtypes.bfloat16).dtype == ml_dtypes.bfloat16
    assert block.array((2, 3), ">i4").dtype == np.dtype(">i4")
    base = block.array((16,), np.int32)
    base[...] = np.arange(16)
    assert block.array((4,), np.int32, strides=(-4,), offset=60).tolist() == [15, 14, 13, 12]
    assert block.array((4, 4), np.int32, strides=(4, 16)).tolist() == base.reshape(4, 4).T.tolist()
    for shape, offset in (((1025,), 0), ((1024,), 4), ((1 << 62,), 0), ((4,), -4)):
        with pytest.raises((TypeError, ValueError), match=r"buffer|too big|offset"):
            block.array(shape, np.int32, offset=offset)


def test_the_last_view_keeps_the_memory() -> None:
    stock = Stock()
    view = stock.allocate(5 * MB).array((100, 100), np.float32)[3:7].T
    view[...] = 3
    assert stock.usage().live >= 5 * MB
    other = stock.allocate(5 * MB).array((100, 100), np.float32)
    other[...] = 5
    assert (view == 3).all()
    del view, other
    assert stock.usage().live == 0
    assert stock.usage().pooled >= 10 * MB
    assert stock.trim() >= 10 * MB
    assert stock.usage().pooled == 0


@pytest.mark.parametrize("nbytes", [100, 100_000, 6 * MB])
def test_a_dropped_block_is_used_again(nbytes: int) -> None:
    stock = Stock()
    address = stock.allocate(nbytes).address
    assert stock.allocate(nbytes).address == address
    usage = stock.usage()
    assert usage.fresh == usage.reused == memory.size_class(nbytes)


def test_a_block_in_a_cycle_comes_back_with_the_collector() -> None:
    stock = Stock()
    array = stock.allocate(6 * MB).array((10,), np.uint8)
    cycle: list[object] = [array]
    cycle.append(cycle)
    del array, cycle
    gc.collect()
    assert stock.usage().live == 0


def test_the_cap_holds_and_the_oldest_goes_first() -> None:
    with knobs.config(pool_limit=20 * MB):
        stock = Stock()
        blocks = [stock.allocate(6 * MB) for _ in range(5)]
        addresses = [block.address for block in blocks]
        while blocks:
            del blocks[0]
            assert stock.usage().pooled <= 20 * MB
        assert stock.usage().pooled == 18 * MB
        kept = {stock.allocate(6 * MB).address for _ in range(3)}
        assert kept <= set(addresses[2:])
    with knobs.config(pool_limit=0):
        stock.allocate(6 * MB)
        stock.allocate(64)
        assert stock.usage().pooled <= 64


def test_many_small_blocks_stay_below_the_cap() -> None:
    with knobs.config(pool_limit=MB):
        stock = Stock()
        for _ in range(3):
            blocks = [stock.allocate(1000) for _ in range(5000)]
            del blocks
            usage = stock.usage()
            assert usage.live == 0
            assert usage.pooled <= MB


def test_random_use_never_overlaps() -> None:
    stock, dice = Stock(), random.Random(5)
    live: list[tuple[np.ndarray, int]] = []
    with knobs.config(pool_limit=8 * MB):
        for step in range(4000):
            choice = dice.random()
            if choice < 0.5:
                nbytes = int(2 ** dice.uniform(0, 22.5))
                array = stock.allocate(nbytes).array((nbytes,), np.uint8)
                mark = step % 251
                array[[0, -1]] = mark
                live.append((array, mark))
            elif choice < 0.97 and live:
                array, mark = live.pop(dice.randrange(len(live)))
                assert array[0] == mark
                assert array[-1] == mark
            elif choice > 0.995:
                stock.trim(dice.randrange(4 * MB))
            if step % 500 == 0:
                assert stock.usage().live >= sum(array.nbytes for array, _ in live)
    del array
    live.clear()
    assert stock.usage().live == 0


def test_threads_at_once() -> None:
    stock, wrong = Stock(), []

    def worker(number: int) -> None:
        dice = random.Random(number)
        for _ in range(1500):
            nbytes = dice.choice([64, 1000, 50_000, 5 * MB])
            array = stock.allocate(nbytes).array((nbytes,), np.uint8)
            array[0] = array[-1] = number
            if array[0] != number or array[-1] != number:
                wrong.append(number)

    threads = [threading.Thread(target=worker, args=(number,)) for number in range(6)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not wrong
    assert stock.usage().live == 0


def test_allocation_inside_finalizers_and_trims() -> None:
    """Finalizers that allocate and drop in turn, while the cap throws blocks out."""
    with knobs.config(pool_limit=2 * MB):
        stock = Stock()

        class Nested:
            def __init__(self, depth: int) -> None:
                self.depth, self.block = depth, stock.allocate(700_000)

            def __del__(self) -> None:
                if self.depth:
                    Nested(self.depth - 1)

        gc.collect()
        gc.freeze()  # what other tests have left would take long to walk
        try:
            for _ in range(20):
                cycle: list[object] = [Nested(5)]
                cycle.append(cycle)
                del cycle
                gc.collect()
        finally:
            gc.unfreeze()
        usage = stock.usage()
        assert usage.live == 0
        assert usage.pooled <= 2 * MB


def test_impossible_sizes() -> None:
    with pytest.raises(ValueError, match="-1 bytes"):
        allocate(-1)
    for nbytes in (1 << 46, 1 << 50, 1 << 63, 1 << 100):
        with pytest.raises(OutOfMemory, match="bytes are needed"):
            allocate(nbytes)
        with pytest.raises(MemoryError):
            Slab(nbytes)
    live = STOCK.usage().live
    with pytest.raises(OutOfMemory):
        allocate(1 << 46)
    assert STOCK.usage().live == live


def test_pooled_memory_makes_room_before_giving_up(monkeypatch: pytest.MonkeyPatch) -> None:
    stock = Stock()
    with knobs.config(pool_limit=64 * MB):
        stock.allocate(32 * MB)
        assert stock.usage().pooled == 32 * MB
        answers = iter([False, True])
        monkeypatch.setattr(memory, "room_for", lambda _: next(answers, True))
        assert stock.allocate(16 * MB).nbytes == 16 * MB
        assert stock.usage().fresh == 48 * MB
        monkeypatch.undo()
        assert stock.usage().pooled <= 16 * MB


@pytest.mark.clock
def test_reuse_is_faster_than_fresh_memory() -> None:
    """A warm block costs the kernel alone; a fresh one the clearing of its pages as well."""
    stock, source = Stock(), np.ones(8 * MB, np.uint8)

    def fill() -> float:
        start = time.perf_counter()
        np.copyto(stock.allocate(8 * MB).array((8 * MB,), np.uint8), source)
        return time.perf_counter() - start

    def fresh() -> float:
        stock.trim()
        return fill()

    fill()
    assert min(fill() for _ in range(10)) < min(fresh() for _ in range(10))


def test_a_slab_is_whole_zeroed_pages() -> None:
    slab = Slab(5000)
    assert slab.nbytes == 8192
    assert slab.address % 4096 == 0
    assert Slab(0).nbytes == 4096
