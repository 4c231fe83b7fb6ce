"""LLVM IR of the thread pool: what kernels call inside of long tasks.

`native.ir` substitutes a number for each `$NAME`; `smelt.runtime.native` explains the protocol.

>>> "@smelt_poll" in POLL
True
"""

from __future__ import annotations

from typing import Final

POLL: Final = """
; Set the thread's specific value; return the former one.
define internal ptr @exchange_run(ptr %pool, ptr %value) {
  %key.at = getelementptr i8, ptr %pool, i64 $KEY
  %key = load i64, ptr %key.at
  %get.at = getelementptr i8, ptr %pool, i64 $GETSPECIFIC
  %get = load ptr, ptr %get.at
  %set.at = getelementptr i8, ptr %pool, i64 $SETSPECIFIC
  %set = load ptr, ptr %set.at
  %former = call ptr %get(i64 %key)
  %status = call i32 %set(i64 %key, ptr %value)
  ret ptr %former
}

; Called by a kernel in a long task, with the words of `smelt.runtime.poll`: 1 if it is to return.
define i32 @smelt_poll(ptr %words) {
entry:
  %key.at = getelementptr i8, ptr %words, i64 8
  %key = load i64, ptr %key.at
  %get.at = getelementptr i8, ptr %words, i64 16
  %get = load ptr, ptr %get.at
  %value = call ptr %get(i64 %key)
  %value.int = ptrtoint ptr %value to i64
  %outside = icmp eq i64 %value.int, 0
  br i1 %outside, label %go, label %look
look:
  %run.int = and i64 %value.int, -2
  %run = inttoptr i64 %run.int to ptr
  %abort.at = getelementptr i8, ptr %run, i64 $RUN_ABORT
  %abort = load atomic i64, ptr %abort.at monotonic, align 8
  %aborted = icmp ne i64 %abort, 0
  br i1 %aborted, label %stop, label %who
who:
  %helps = icmp ne i64 %run.int, %value.int
  br i1 %helps, label %go, label %time
time:
  %pool.at = getelementptr i8, ptr %run, i64 $RUN_POOL
  %pool = load ptr, ptr %pool.at
  %now = call i1 @due(ptr %pool, ptr %run)
  br i1 %now, label %where, label %go
where:                                    ; signal handlers run in the main thread only
  %self.at = getelementptr i8, ptr %pool, i64 $SELF
  %self = load ptr, ptr %self.at
  %thread = call i64 %self()
  %main.at = getelementptr i8, ptr %pool, i64 $MAIN
  %main = load i64, ptr %main.at
  %is.main = icmp eq i64 %thread, %main
  br i1 %is.main, label %handle, label %never
never:
  %deadline.at = getelementptr i8, ptr %run, i64 $RUN_DEADLINE
  store i64 9223372036854775807, ptr %deadline.at
  br label %go
handle:
  %ensure.at = getelementptr i8, ptr %pool, i64 $ENSURE
  %ensure = load ptr, ptr %ensure.at
  %gil = call i32 %ensure()
  %check.at = getelementptr i8, ptr %pool, i64 $CHECK_SIGNALS
  %check = load ptr, ptr %check.at
  %status = call i32 %check()
  %raised = icmp ne i32 %status, 0
  br i1 %raised, label %keep, label %release
keep:
  %type.at = getelementptr i8, ptr %run, i64 $RUN_RAISED
  %value.at = getelementptr i8, ptr %type.at, i64 8
  %traceback.at = getelementptr i8, ptr %type.at, i64 16
  %fetch.at = getelementptr i8, ptr %pool, i64 $FETCH
  %fetch = load ptr, ptr %fetch.at
  call void %fetch(ptr %type.at, ptr %value.at, ptr %traceback.at)
  br label %release
release:
  %release.at = getelementptr i8, ptr %pool, i64 $RELEASE
  %let.go = load ptr, ptr %release.at
  call void %let.go(i32 %gil)
  %forked.at = getelementptr i8, ptr %pool, i64 $FORKED
  %forked = load i64, ptr %forked.at
  %is.child = icmp ne i64 %forked, 0
  %leave = or i1 %raised, %is.child
  br i1 %leave, label %abandon, label %go
abandon:
  store atomic i64 1, ptr %abort.at monotonic, align 8
  br label %stop
go:
  ret i32 0
stop:
  ret i32 1
}
"""
