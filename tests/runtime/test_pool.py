"""The pool runs every chunk once, in launch order, for every number of threads."""

from __future__ import annotations

import os
import platform
import signal
import threading
import time
from functools import cache
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np
import pytest
from tests.pace import pace
from tests.runtime.kernels import Program, program

from smelt import knobs
from smelt.errors import OutOfMemory
from smelt.kernel import abi
from smelt.runtime import native
from smelt.runtime.threads import Pool, pool

ARCH = platform.machine().replace("amd64", "x86_64")


@cache
def variant(name: str) -> Pool:
    if name == "usual":
        return pool()
    return Pool(FUTEX=0) if name == "without futex" else Pool(MAX_CHUNKS=5)


@pytest.fixture(params=["usual", "without futex", "five at a time"])
def any_pool(request: pytest.FixtureRequest) -> Pool:
    return variant(request.param)


def check_tables(chunks: np.ndarray, launches: np.ndarray) -> None:
    """Raise ValueError unless both tables have the documented shapes, types and ranges.

    The native loop trusts its tables: those that a test builds by hand are checked here.
    """
    for name, table in (("chunk", chunks), ("launch", launches)):
        if table.dtype != np.int64 or table.ndim != 2 or table.shape[1] != 4:
            raise ValueError(
                f"a {name} table is int64 of shape (n, 4), not {table.dtype}{table.shape}"
            )
        if not table.flags.c_contiguous:
            raise ValueError(f"a {name} table is contiguous")
    if len(chunks) and not chunks[:, 0].all():
        raise ValueError("a chunk calls address 0")
    first, count, flags = launches[:, 0], launches[:, 1], launches[:, 2]
    if (first < 0).any() or (count < 0).any() or (first + count > len(chunks)).any():
        raise ValueError(f"a launch reaches outside the {len(chunks)} chunks")
    if ((flags & ~abi.PARALLEL) != 0).any() or launches[:, 3].any():
        raise ValueError("unknown launch flags")


def run(where: Pool, work: Program, threads: int = 2, scratch_bytes: int = 0) -> np.ndarray:
    chunks, launches, frame = work.tables()
    check_tables(chunks, launches)
    with knobs.config(threads=threads):
        where.run(chunks, launches, frame, scratch_bytes)
    return work.out


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize("count", [0, 1, 2, 7, 400])
@pytest.mark.parametrize("parallel", [False, True])
def test_every_chunk_runs_once(any_pool: Pool, threads: int, count: int, parallel: bool) -> None:
    for repeat in range(1, 6):
        work = program(3 * count).launch("count", count, 3, parallel)
        assert (run(any_pool, work, threads) == np.arange(1, 3 * count + 1)).all(), repeat


def test_launches_run_one_after_another(any_pool: Pool) -> None:
    work = program(64)
    expected = 0
    for number in range(40):
        work.launch("step", 16, 4, number % 3 != 0, more=number + 1)
        expected = (expected * 31 + number + 1) & ((1 << 64) - 1)
    for _ in range(20):
        work.out[:] = 0
        out = run(any_pool, work, threads=4)
        assert (out.view(np.uint64) == expected).all()


def test_helpers_take_part_up_to_the_limit() -> None:
    fresh = Pool()
    work = program(64).launch("busy", 64, more=200_000)
    for _ in range(5):
        run(fresh, work, threads=3)
    many = fresh.chunks_by_helper()
    assert len(many) == 2
    assert sum(many) > 0
    for _ in range(5):
        run(fresh, work, threads=1)
    assert fresh.chunks_by_helper() == many
    for _ in range(20):
        run(fresh, work, threads=2)
    two = fresh.chunks_by_helper()
    assert two[1] == many[1]
    fresh.stop()


def test_results_are_the_same_bits_for_every_number_of_threads() -> None:
    reference = None
    for threads in (1, 2, 3, 8):
        for _ in range(50):
            work = program(128).launch("step", 32, 4, more=3).launch("step", 8, 16, more=5)
            work.out[:] = np.arange(128)
            bits = run(pool(), work, threads).tobytes()
            reference = reference or bits
            assert bits == reference


def test_a_random_mixture_of_jobs_under_oversubscription() -> None:
    random = np.random.default_rng(7)
    for _ in range(300):
        work, expected = program(512), np.zeros(512, np.int64)
        for _ in range(int(random.integers(1, 8))):
            count, size = int(random.integers(0, 40)), int(random.integers(1, 12))
            work.launch("count", count, size, bool(random.integers(0, 2)))
            expected[: count * size] += np.arange(1, count * size + 1)
        assert (run(pool(), work, int(random.integers(1, 9))) == expected).all()


def test_the_owner_takes_chunks_from_the_front_and_helpers_from_the_back() -> None:
    for _ in range(50):
        places = run(pool(), program(200).launch("place", 200), threads=2, scratch_bytes=64)
        assert np.count_nonzero(places[1:] != places[:-1]) <= 1


def test_scratch_is_aligned_private_and_long_enough(any_pool: Pool) -> None:
    work = program(32).launch("place", 32)
    places = set(run(any_pool, work, threads=3, scratch_bytes=1000))
    assert all(place % abi.SCRATCH_ALIGNMENT == 0 and place for place in places)
    assert len(places) <= 3
    for nbytes in (8 * 1000, 8 * 100_000, 8 * 10):
        work = program(24).launch("scribble", 24, more=nbytes // 8)
        assert not run(any_pool, work, threads=3, scratch_bytes=nbytes).any()


def test_too_much_scratch_is_refused_before_anything_runs(any_pool: Pool) -> None:
    work = program(8).launch("count", 8)
    for nbytes in (1 << 46, 1 << 62):
        with pytest.raises(OutOfMemory, match="bytes are needed"):
            run(any_pool, work, scratch_bytes=nbytes)
    assert not work.out.any()
    assert (run(any_pool, work) == np.arange(1, 9)).all()


def test_eight_python_threads_at_once() -> None:
    failures: list[str] = []

    def caller(number: int) -> None:
        for _ in range(100):
            words = 50 + number
            work = program(60).launch("count", 20, 3).launch("scribble", 60, more=words)
            out = run(pool(), work, threads=2, scratch_bytes=8 * words)
            if out.any():  # the second launch overwrites what the first counted with zeros
                failures.append(f"{number}: {out}")

    callers = [threading.Thread(target=caller, args=(number,)) for number in range(8)]
    for each in callers:
        each.start()
    for each in callers:
        each.join()
    assert not failures


def test_two_callers_do_not_wait_for_each_other() -> None:
    """While one call works for a long time, another thread's short calls go through."""
    long = program(200).launch("busy", 200, more=2_000_000)
    thread = threading.Thread(target=lambda: run(pool(), long, threads=1))
    thread.start()
    while not long.out.any():
        time.sleep(0.001)
    done = 0
    while thread.is_alive() and done < 50:
        assert run(pool(), program(8).launch("count", 8)).all()
        done += 1
    assert done > 10
    thread.join()
    assert long.out.all()


def test_a_signal_handler_may_use_the_pool() -> None:
    seen: list[int] = []

    def handler(*_: object) -> None:
        nested = program(32).launch("count", 8, 4).launch("scribble", 4, more=64)
        seen.append(int(run(pool(), nested, scratch_bytes=512)[-1]))

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        for threads in (1, 2):
            work = program(600).launch("busy", 600, more=1_000_000)
            timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1))
            timer.start()
            assert run(pool(), work, threads).all()
            timer.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert seen == [32, 32]


class Interrupted(Exception):
    pass


def interrupted(any_pool: Pool, threads: int) -> list[float]:
    """Seconds from a signal whose handler raises to the end of the run, three times."""
    raised_at = 0.0

    def handler(*_: object) -> None:
        raise Interrupted

    def poke() -> None:
        nonlocal raised_at
        raised_at = time.perf_counter()
        os.kill(os.getpid(), signal.SIGUSR1)

    waits: list[float] = []
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        for _ in range(3):
            work = program(20_000).launch("busy", 20_000, more=1_000_000)
            timer = threading.Timer(0.02, poke)
            with pytest.raises(Interrupted):  # noqa: PT012 - it may come before the run begins
                timer.start()
                run(any_pool, work, threads)
            waits.append(time.perf_counter() - raised_at)
            timer.join()
            stopped = work.out.copy()
            assert not stopped.all()
            # Nobody works on what was given up, and the pool is ready for the next call.
            after = program(300).launch("count", 100, 3)
            assert (run(any_pool, after, threads) == np.arange(1, 301)).all()
            assert (work.out == stopped).all()
    finally:
        signal.signal(signal.SIGUSR1, before)
    return waits


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_a_raising_handler_ends_the_run(any_pool: Pool, threads: int) -> None:
    assert len(interrupted(any_pool, threads)) == 3


@pytest.mark.clock
@pytest.mark.parametrize("threads", [1, 2, 4])
def test_a_raising_handler_ends_the_run_soon(any_pool: Pool, threads: int) -> None:
    waits = interrupted(any_pool, threads)
    # A busy machine may once take its time to run anything at all.
    assert min(waits) < 0.2
    assert max(waits) < 2


@pytest.mark.skipif(ARCH != "x86_64", reason="the control register of x86")
def test_floating_point_control_is_the_default_in_every_thread() -> None:
    out = run(pool(), program(64).launch("busy", 64, more=1000).launch("mxcsr", 64), threads=4)
    assert {int(word) & 0xFFC0 for word in out} == {0x1F80}  # without the sticky flags


def tasks() -> set[str]:
    return {task.name for task in Path("/proc/self/task").iterdir()}


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
def test_helpers_block_all_signals_and_the_caller_none() -> None:
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    before = tasks()
    fresh = Pool()
    assert tasks() == before
    run(fresh, program(2).launch("count", 2, parallel=False), threads=3)
    assert tasks() == before
    run(fresh, program(8).launch("count", 8), threads=3)
    helpers = tasks() - before
    assert len(helpers) == 2
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == mask
    for helper in helpers:
        status = Path(f"/proc/self/task/{helper}/status").read_text()
        blocked = int(next(line for line in status.splitlines() if "SigBlk" in line).split()[1], 16)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGUSR1):
            assert blocked >> (number - 1) & 1
    fresh.stop()
    deadline = time.monotonic() + 5
    while tasks() & helpers and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not tasks() & helpers
    # It comes back to life when it is needed again.
    assert (run(fresh, program(8).launch("count", 8), threads=3) == np.arange(1, 9)).all()
    fresh.stop()


@pytest.mark.clock
def test_idle_helpers_use_no_time() -> None:
    run(pool(), program(8).launch("busy", 8, more=1000), threads=2)
    time.sleep(0.02)
    before = time.process_time()
    time.sleep(0.2)
    assert time.process_time() - before < 0.05


def test_tables_are_checked() -> None:
    chunks, launches, _ = program(4).launch("count", 4).tables()
    check_tables(chunks, launches)
    for break_it in (
        lambda c, m: (c[:, :3], m),
        lambda c, m: (c.astype(np.int32), m),
        lambda c, m: (np.asfortranarray(c), m),
        lambda c, m: (c * 0, m),
        lambda c, m: (c, np.add(m, [0, 1, 0, 0])),
        lambda c, m: (c, np.add(m, [-1, 0, 0, 0])),
        lambda c, m: (c, np.add(m, [0, 0, 8, 0])),
        lambda c, m: (c, np.add(m, [0, 0, 0, 1])),
    ):
        with pytest.raises(ValueError, match=r"table|address|launch"):
            check_tables(*break_it(chunks, launches))


def test_the_native_text_also_compiles_for_arm() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple("aarch64-unknown-linux-gnu")
    for triple in ("aarch64-unknown-linux-gnu", "arm64-apple-darwin"):
        module = llvm.parse_assembly(native.ir(triple))
        module.triple = "aarch64-unknown-linux-gnu"
        assembly = target.create_target_machine(opt=2).emit_assembly(module)
        assert "smelt_run" in assembly
        assert "isb" in assembly


@pytest.mark.clock
def test_eight_callers_take_no_longer_than_one_after_the_other() -> None:
    def calls(threads: int) -> None:
        chunks, launches, frame = program(8).launch("busy", 8, more=20_000).tables()
        with knobs.config(threads=threads):
            for _ in range(40):
                pool().run(chunks, launches, frame)

    def together() -> float:
        callers = [threading.Thread(target=calls, args=(2,)) for _ in range(8)]
        start = time.perf_counter()
        for each in callers:
            each.start()
        for each in callers:
            each.join()
        return time.perf_counter() - start

    def in_turn() -> float:
        start = time.perf_counter()
        for _ in range(8):
            calls(1)
        return time.perf_counter() - start

    calls(2)
    rounds = [(together(), in_turn()) for _ in range(16)]  # others may run beside some of them
    # Where something else has one of two cores all the while, they share the other; callers that
    # wait for helpers without one would take many times as long.
    assert min(a for a, _ in rounds) < 2 * min(b for _, b in rounds)


@pytest.mark.clock
def test_a_small_call_costs_little() -> None:
    chunks, launches, frame = program(2).launch("count", 2, parallel=False).tables()
    call = (chunks.ctypes.data, launches.ctypes.data, 1, frame.ctypes.data)

    def one() -> float:
        start = time.perf_counter()
        for _ in range(1000):
            pool().run_addresses(*call)
        return (time.perf_counter() - start) / 1000

    assert min(one() for _ in range(10)) < 5e-6 * pace()
