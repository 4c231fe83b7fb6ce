"""The pool beside signals, forks and the end of the interpreter: each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PRELUDE = """
import json, os, signal, sys, threading, time
import numpy as np
from tests.runtime.kernels import program
from smelt import knobs
from smelt.runtime import memory
from smelt.runtime.threads import pool

signal.signal(signal.SIGINT, signal.default_int_handler)  # shells ignore it in the background

def run(work, threads=2, scratch=0):
    with knobs.config(threads=threads):
        pool().run(*work.tables(), scratch)
    return work.out

def right(threads=2):
    return bool((run(program(60).launch("count", 20, 3), threads) == np.arange(1, 61)).all())
"""


def python(code: str, timeout: float = 60, **environment: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    return subprocess.run(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, "PYTHONPATH": paths, **environment},
        check=False,
    )


def result(code: str, timeout: float = 60, **environment: str) -> object:
    done = python(code, timeout, **environment)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def interrupted() -> tuple[list[float], list[bool]]:
    """Time an interrupt to the end of a long run, and check the pool after it, repeatedly."""
    waits, usable = result("""
        waits, usable = [], []
        sent = 0.0
        def interrupt():
            global sent
            sent = time.perf_counter()
            os.kill(os.getpid(), signal.SIGINT)
        for repeat in range(30):
            work = program(30_000).launch("busy", 30_000, more=1_000_000, parallel=repeat % 3 > 0)
            timer = threading.Timer(0.01 + 0.003 * repeat, interrupt)
            try:
                timer.start()
                run(work)
                waits.append(9.0)
            except KeyboardInterrupt:
                waits.append(time.perf_counter() - sent)
            timer.join()
            usable.append(right())
        print(json.dumps([waits, usable]))
    """)
    return waits, usable


def test_control_c_leaves_the_pool_usable() -> None:
    waits, usable = interrupted()
    assert len(waits) == len(usable) == 30
    assert all(usable)


@pytest.mark.clock
def test_control_c_ends_a_long_run_within_200_ms() -> None:
    waits, _ = interrupted()
    # Once in a while a busy machine takes its time to run anything at all.
    assert sorted(waits)[-3] < 0.2
    assert max(waits) < 1.0


def test_an_interrupt_at_any_moment_leaves_the_pool_free() -> None:
    """Interrupts hit Python code before and after the native calls as well as in them."""
    results = result("""
        class Stop(Exception): pass
        armed = []
        def handler(*_):
            if armed:
                armed.clear()
                raise Stop
        signal.signal(signal.SIGALRM, handler)
        work = program(64).launch("busy", 64, more=300).launch("scribble", 8, more=8)
        right()
        owner = pool()._state.word("OWNER")
        caught = 0
        for repeat in range(3000):
            try:
                armed.append(1)
                signal.setitimer(signal.ITIMER_REAL, 1e-6 * (repeat % 100 + 1))
                for more in range(4):
                    run(work, 2 + (repeat + more) % 3, 64 + 4096 * (repeat * more % 50))
                armed.clear()
            except Stop:
                caught += 1
            assert owner.value == 0, repeat
        print(json.dumps([caught, right()]))
    """)
    caught, usable = results
    assert usable
    assert caught > 1000


def test_a_hail_of_interrupts() -> None:
    """Handlers that raise again while the first exception is on its way; each is caught."""
    actual = result("""
        class Stop(Exception): pass
        budget = 0
        def handler(*_):
            global budget
            if budget:
                budget -= 1
                raise Stop
        signal.signal(signal.SIGALRM, handler)
        work = program(400).launch("busy", 400, more=20_000)
        right()
        owner = pool()._state.word("OWNER")
        for repeat in range(300):
            signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.00002)
            try:
                try:
                    budget = 2
                    run(work)
                    budget = 0
                except Stop:
                    for _ in range(1000):  # let the other one in, if it has not come yet
                        pass
                    budget = 0
            except Stop:
                pass
            signal.setitimer(signal.ITIMER_REAL, 0)
            assert owner.value == 0, repeat
            work.out[:] = 0
        time.sleep(0.1)  # a signal on its way to another thread comes before Python's end
        print(json.dumps(right()))
    """)
    assert actual is True


def test_children_of_a_fork_have_a_pool_of_their_own() -> None:
    actual = result(
        """
        assert right()
        signal.alarm(50)
        failed = 0
        for number in range(60):
            child = os.fork()
            if child == 0:
                signal.alarm(5)
                ok = right() and len(os.listdir("/proc/self/task")) == 2
                block = memory.allocate(5 << 20).array((100,), "f4")
                os._exit(0 if ok and block.size == 100 else 1)
            failed += os.waitpid(child, 0)[1]
            assert right()
        print(json.dumps(failed))
        """,
        OPENBLAS_NUM_THREADS="1",
    )
    assert actual == 0


def test_forks_while_other_threads_run_compile_and_allocate() -> None:
    actual = result("""
        from smelt.runtime.jit import compile_ir
        from smelt.runtime.code import load
        from smelt.runtime.cache import Cache
        assert right()
        stop, wrong = threading.Event(), []
        def runs():
            while not stop.is_set():
                if not right():
                    wrong.append("parent")
        def compiles():
            n = 0
            while not stop.is_set():
                n += 1
                load(compile_ir(f"define i64 @f() {{ ret i64 {n} }}"), ["f"])
                Cache.default().put(b"fork%d" % (n % 5), {}, b"x" * 1000)
        def allocates():
            while not stop.is_set():
                for size in (100, 10_000, 5 << 20):
                    memory.allocate(size).array((10,), "f4")
        threads = [threading.Thread(target=f) for f in (runs, runs, compiles, allocates)]
        for each in threads:
            each.start()
        signal.alarm(50)
        failed = 0
        for number in range(40):
            child = os.fork()
            if child == 0:
                signal.alarm(5)
                fine = right() and right(4)
                load(compile_ir("define i64 @f() { ret i64 1 }"), ["f"])
                memory.allocate(10_000).array((10,), "f4")
                Cache.default().get(b"fork1")
                os._exit(0 if fine else 1)
            failed += os.waitpid(child, 0)[1]
        stop.set()
        for each in threads:
            each.join()
        print(json.dumps([failed, wrong]))
    """)
    assert actual == [0, []]


def test_a_handler_that_forks_in_the_middle_of_a_run() -> None:
    actual = result("""
        codes = []
        def handler(*_):
            child = os.fork()
            if child:
                codes.append(os.waitpid(child, 0)[1])
        signal.signal(signal.SIGUSR1, handler)
        parent = os.getpid()
        work = program(3000).launch("busy", 3000, more=1_500_000)
        timer = threading.Timer(0.05, os.kill, (parent, signal.SIGUSR1))
        timer.start()
        signal.alarm(30)
        try:
            run(work)
        except NotImplementedError:
            os._exit(0 if os.getpid() != parent and right() else 1)
        print(json.dumps([codes, bool(work.out.all())]))
    """)
    assert actual == [[0], True]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing(method: str, tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    text = """
        def job(number):
            return right() and number

        if __name__ == "__main__":
            import multiprocessing
            assert right()
            with multiprocessing.get_context(sys.argv[1]).Pool(2) as workers:
                print(json.dumps(workers.map(job, range(1, 5))))
    """
    script.write_text(PRELUDE + textwrap.dedent(text))
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    done = subprocess.run(
        [sys.executable, str(script), method],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": paths},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [1, 2, 3, 4]


@pytest.mark.parametrize("delay", [0.0, 0.002, 0.02])
def test_the_interpreter_may_end_while_a_daemon_thread_runs(delay: float) -> None:
    for threads in (1, 2):
        done = python(f"""
            def forever():
                while True:
                    block = memory.allocate(5 << 20)
                    run(program(500).launch("scribble", 500, more=20_000), {threads}, 160_000)
            assert right()
            threading.Thread(target=forever, daemon=True).start()
            time.sleep({delay})
            keep = memory.allocate(1 << 20).array((10,), "f4")
        """)
        assert (done.returncode, done.stderr) == (0, "")


def test_the_interpreter_may_end_with_helpers_at_work_and_memory_alive() -> None:
    for ending in ("", "sys.exit(0)", "os._exit(0)"):
        done = python(f"""
            import gc
            keep = [memory.allocate(n).array((10,), "f4") for n in (100, 1 << 20, 5 << 20)]
            cycle = [memory.allocate(4096)]
            cycle.append(cycle)
            assert right(4)
            {ending}
        """)
        assert (done.returncode, done.stderr) == (0, "")


def test_a_refused_thread_is_done_without() -> None:
    actual = result("""
        import resource
        # Scratch for four threads, but no thread yet.
        run(program(1).launch("count", 1), 4)
        used = int(open("/proc/self/statm").read().split()[0]) * 4096
        resource.setrlimit(resource.RLIMIT_AS, (used + (300 << 10), resource.RLIM_INFINITY))
        before = len(os.listdir("/proc/self/task"))
        fine = right(4)
        print(json.dumps([fine, len(os.listdir("/proc/self/task")) - before]))
    """)
    assert actual == [True, 0]


def test_threads_follow_the_environment() -> None:
    code = "print(json.dumps([pool().threads, pool().budget.source]))"
    assert result(code, SMELT_THREADS="1", OMP_NUM_THREADS="7") == [1, "SMELT_THREADS"]
    assert result(code, OMP_NUM_THREADS="1,4") == [1, "OMP_NUM_THREADS"]
    capped = result(code, SMELT_THREADS="64")
    assert capped[0] <= (os.cpu_count() or 1)


def test_importing_starts_no_thread_and_makes_no_directory(tmp_path: Path) -> None:
    place = tmp_path / "cache"
    actual = result(
        """
        print(json.dumps([len(os.listdir("/proc/self/task")), os.path.exists(sys.argv[0])]))
        """,
        OPENBLAS_NUM_THREADS="1",
        SMELT_CACHE_DIR=str(place),
    )
    assert actual[0] == 1
    assert not place.exists()
