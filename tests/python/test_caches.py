"""Cached properties compute once and hold no lock that a fork could inherit."""

from __future__ import annotations

import threading

from smelt.python.caches import cached_property


class Slow:
    def __init__(self):
        self.computed = 0
        self.begun, self.go_on = threading.Event(), threading.Event()

    @cached_property
    def value(self):
        self.computed += 1
        self.begun.set()
        assert self.go_on.wait(20)
        return 5


def test_a_value_is_computed_once():
    slow = Slow()
    slow.go_on.set()
    assert (slow.value, slow.value, slow.computed) == (5, 5, 1)


def test_no_thread_waits_for_another():
    first, second = Slow(), Slow()
    second.go_on.set()
    thread = threading.Thread(target=getattr, args=(first, "value"))
    thread.start()
    assert first.begun.wait(20)
    other = threading.Thread(target=getattr, args=(second, "value"))
    other.start()
    other.join(20)
    alive = other.is_alive()
    first.go_on.set()
    thread.join()
    assert not alive
