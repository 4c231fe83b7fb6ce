"""LLVM IR of the pool's owner: run launches, wait for helpers, abandon a run.

`native.ir` substitutes a number for each `$NAME`; `smelt.runtime.native` explains the protocol.

>>> "@smelt_drive" in DRIVE
True
"""

from __future__ import annotations

from typing import Final

AWAIT: Final = """
; Wait until helpers have finished `expected` chunks; true if the run should pause instead.
define internal i1 @await(ptr %pool, ptr %run, i64 %expected) {
entry:
  %finished.at = getelementptr i8, ptr %pool, i64 $FINISHED
  %waiting.at = getelementptr i8, ptr %pool, i64 $WAITING
  %goal = trunc i64 %expected to i32
  br label %spin
spin:
  %turn = phi i32 [ 0, %entry ], [ %turn.next, %relax ]
  %finished = load atomic i32, ptr %finished.at acquire, align 4
  %complete = icmp eq i32 %finished, %goal
  br i1 %complete, label %yes, label %relax
relax:
  call void @relax()
  %turn.next = add i32 %turn, 1
  %patient = icmp slt i32 %turn, 1000
  br i1 %patient, label %spin, label %doze
doze:
  %pause = call i1 @due(ptr %pool, ptr %run)
  br i1 %pause, label %paused, label %announce
announce:
  store atomic i32 1, ptr %waiting.at seq_cst, align 4
  %seen = load atomic i32, ptr %finished.at seq_cst, align 4
  %complete.now = icmp eq i32 %seen, %goal
  br i1 %complete.now, label %awake, label %sleep
sleep:
  call void @sleep_on(ptr %pool, ptr %finished.at, i32 %seen, i64 2000000)
  br label %awake
awake:
  store atomic i32 0, ptr %waiting.at seq_cst, align 4
  %after = load atomic i32, ptr %finished.at acquire, align 4
  %complete.after = icmp eq i32 %after, %goal
  br i1 %complete.after, label %yes, label %doze
yes:
  ret i1 false
paused:
  ret i1 true
}
"""

DRIVE: Final = """
; Run launches from the state in the run block until all are done or the run should pause.
define i32 @smelt_drive(ptr %pool, ptr %run, ptr %chunks, ptr %launches, i64 %n, ptr %frame) {
entry:
  %phase.at = getelementptr i8, ptr %run, i64 $RUN_PHASE
  %launch.at = getelementptr i8, ptr %run, i64 $RUN_LAUNCH
  %row.at = getelementptr i8, ptr %run, i64 $RUN_ROW
  %end.at = getelementptr i8, ptr %run, i64 $RUN_END
  %batch.at = getelementptr i8, ptr %run, i64 $RUN_BATCH
  %mine.at = getelementptr i8, ptr %run, i64 $RUN_MINE
  %solo.at = getelementptr i8, ptr %run, i64 $RUN_SOLO
  %scratch.at = getelementptr i8, ptr %run, i64 $RUN_SCRATCH
  %word.at = getelementptr i8, ptr %pool, i64 $WORD
  %finished.at = getelementptr i8, ptr %pool, i64 $FINISHED
  %job_first.at = getelementptr i8, ptr %pool, i64 $JOB_FIRST
  %job_frame.at = getelementptr i8, ptr %pool, i64 $JOB_FRAME
  %job_cpu.at = getelementptr i8, ptr %pool, i64 $JOB_CPU
  %job_limit.at = getelementptr i8, ptr %pool, i64 $JOB_LIMIT
  %wake.at = getelementptr i8, ptr %pool, i64 $WAKE
  %sleepers.at = getelementptr i8, ptr %pool, i64 $SLEEPERS
  %owner.at = getelementptr i8, ptr %pool, i64 $OWNER
  %active.at = getelementptr i8, ptr %pool, i64 $ACTIVE
  %started.at = getelementptr i8, ptr %pool, i64 $STARTED
  %scratch = load ptr, ptr %scratch.at
  %solo = load i64, ptr %solo.at
  %threads.at = getelementptr i8, ptr %run, i64 $RUN_THREADS
  %threads = load i64, ptr %threads.at
  %limit = trunc i64 %threads to i32
  %owned = icmp eq i64 %solo, 0
  %phase = load i64, ptr %phase.at
  switch i64 %phase, label %next [ i64 $SERIAL, label %serial
                                   i64 $PUBLISH, label %publish
                                   i64 $CLAIM, label %claim
                                   i64 $WAIT, label %wait ]

next:
  %index = load i64, ptr %launch.at
  %more = icmp slt i64 %index, %n
  br i1 %more, label %begin, label %finish
begin:
  %index.next = add i64 %index, 1
  store i64 %index.next, ptr %launch.at
  %launch.offset = mul i64 %index, 32
  %launch = getelementptr i8, ptr %launches, i64 %launch.offset
  %first = load i64, ptr %launch
  %count.at = getelementptr i8, ptr %launch, i64 8
  %count = load i64, ptr %count.at
  %flags.at = getelementptr i8, ptr %launch, i64 16
  %flags = load i64, ptr %flags.at
  %first.offset = mul i64 %first, 32
  %first.row = getelementptr i8, ptr %chunks, i64 %first.offset
  %count.offset = mul i64 %count, 32
  %last.row = getelementptr i8, ptr %first.row, i64 %count.offset
  store ptr %first.row, ptr %row.at
  store ptr %last.row, ptr %end.at
  %flag = and i64 %flags, 1
  %flagged = icmp ne i64 %flag, 0
  %several = icmp sgt i64 %count, 1
  %manned = icmp sgt i64 %threads, 1
  %p0 = and i1 %flagged, %several
  %p1 = and i1 %manned, %owned
  %parallel = and i1 %p0, %p1
  br i1 %parallel, label %man, label %serial.enter

serial.enter:
  store i64 $SERIAL, ptr %phase.at
  br label %serial
serial:
  %row = load ptr, ptr %row.at
  %end = load ptr, ptr %end.at
  %empty = icmp eq ptr %row, %end
  br i1 %empty, label %launch.done, label %serial.call
serial.call:
  call void @call_chunk(ptr %row, ptr %frame, ptr %scratch)
  %row.next = getelementptr i8, ptr %row, i64 32
  store ptr %row.next, ptr %row.at
  %serial.last = icmp eq ptr %row.next, %end
  br i1 %serial.last, label %launch.done, label %serial.poll
serial.poll:
  %serial.due = call i1 @due(ptr %pool, ptr %run)
  br i1 %serial.due, label %paused, label %serial
launch.done:
  store i64 $NEXT, ptr %phase.at
  %index.now = load i64, ptr %launch.at
  %any = icmp slt i64 %index.now, %n
  br i1 %any, label %launch.poll, label %finish
launch.poll:
  %launch.due = call i1 @due(ptr %pool, ptr %run)
  br i1 %launch.due, label %paused, label %next

man:
  store i64 $PUBLISH, ptr %phase.at
  %active = load i32, ptr %active.at
  %started = load i32, ptr %started.at
  %ready = icmp eq i32 %started, %active
  br i1 %ready, label %publish, label %start
start:
  call void @start_helpers(ptr %pool)
  br label %publish

publish:
  %p.row = load ptr, ptr %row.at
  %p.end = load ptr, ptr %end.at
  %p.row.int = ptrtoint ptr %p.row to i64
  %p.end.int = ptrtoint ptr %p.end to i64
  %p.bytes = sub i64 %p.end.int, %p.row.int
  %p.count = lshr i64 %p.bytes, 5
  %nothing = icmp eq i64 %p.count, 0
  br i1 %nothing, label %launch.done, label %post
post:
  %small = icmp ult i64 %p.count, $MOST_CHUNKS
  %batch = select i1 %small, i64 %p.count, i64 $MOST_CHUNKS
  %batch.offset = mul i64 %batch, 32
  %stop = getelementptr i8, ptr %p.row, i64 %batch.offset
  %frame.int = ptrtoint ptr %frame to i64
  store ptr %stop, ptr %row.at
  store i64 %batch, ptr %batch.at
  store i64 0, ptr %mine.at
  store i64 $CLAIM, ptr %phase.at
  store atomic i32 0, ptr %finished.at monotonic, align 4
  store atomic i64 %p.row.int, ptr %job_first.at monotonic, align 8
  store atomic i64 %frame.int, ptr %job_frame.at monotonic, align 8
  %cpu = call i32 @this_cpu(ptr %pool)
  store atomic i32 %cpu, ptr %job_cpu.at monotonic, align 4
  store atomic i32 %limit, ptr %job_limit.at monotonic, align 4
  %word.old = load atomic i64, ptr %word.at monotonic, align 8
  %epoch.bits = and i64 %word.old, -4294967296
  %epoch.next = add i64 %epoch.bits, 4294967296
  %word.new = or i64 %epoch.next, %batch
  store atomic i64 %word.new, ptr %word.at seq_cst, align 8
  %sleepers = load atomic i32, ptr %sleepers.at seq_cst, align 4
  %anyone = icmp sgt i32 %sleepers, 0
  br i1 %anyone, label %rouse, label %claim
rouse:
  %w0 = atomicrmw add ptr %wake.at, i32 1 seq_cst
  %helpful = sub i64 %batch, 1
  %r.active = load i32, ptr %active.at
  %everybody = icmp eq i32 %r.active, %limit
  %few = icmp ult i64 %helpful, 64
  %helpful.small = and i1 %few, %everybody      ; else only excluded helpers may wake
  %helpful.64 = select i1 %helpful.small, i64 %helpful, i64 64
  %helpful.32 = trunc i64 %helpful.64 to i32
  call void @wake_on(ptr %pool, ptr %wake.at, i32 %helpful.32)
  br label %claim

claim:
  %word = load atomic i64, ptr %word.at acquire, align 8
  %left = and i64 %word, 65535
  %none = icmp eq i64 %left, 0
  br i1 %none, label %wait, label %try
try:                                      ; the first chunk: begun + 1, left - 1
  %less = add i64 %word, 65535
  %swap = cmpxchg ptr %word.at, i64 %word, i64 %less acq_rel monotonic
  %won = extractvalue { i64, i1 } %swap, 1
  br i1 %won, label %work, label %claim
work:
  %job.first = load atomic ptr, ptr %job_first.at monotonic, align 8
  %mine = load i64, ptr %mine.at
  %along = mul i64 %mine, 32
  %job.row = getelementptr i8, ptr %job.first, i64 %along
  %mine.next = add i64 %mine, 1
  store i64 %mine.next, ptr %mine.at
  call void @call_chunk(ptr %job.row, ptr %frame, ptr %scratch)
  %claim.last = icmp eq i64 %left, 1
  br i1 %claim.last, label %wait, label %claim.poll
claim.poll:                               ; helpers avoid the CPU of the owner
  %cpu.now = call i32 @this_cpu(ptr %pool)
  %cpu.told = load atomic i32, ptr %job_cpu.at monotonic, align 4
  %settled = icmp eq i32 %cpu.now, %cpu.told
  br i1 %settled, label %claim.due, label %claim.tell
claim.tell:
  store atomic i32 %cpu.now, ptr %job_cpu.at monotonic, align 4
  br label %claim.due
claim.due:
  %pause = call i1 @due(ptr %pool, ptr %run)
  br i1 %pause, label %paused, label %claim

wait:
  store i64 $WAIT, ptr %phase.at
  %w.batch = load i64, ptr %batch.at
  %w.mine = load i64, ptr %mine.at
  %expected = sub i64 %w.batch, %w.mine
  %wait.due = call i1 @await(ptr %pool, ptr %run, i64 %expected)
  br i1 %wait.due, label %paused, label %waited
waited:
  store i64 $PUBLISH, ptr %phase.at
  br label %publish

paused:
  ret i32 $PAUSED
finish:
  br i1 %owned, label %free, label %leave
free:
  store atomic i64 0, ptr %owner.at release, align 8
  ret i32 $DONE
leave:
  ret i32 $DONE
}
"""

ENTRY: Final = """
; Acquire the pool and run; or return that it is busy, or that it must be set up first.
define i32 @smelt_run(ptr %pool, ptr %chunks, ptr %launches, i64 %n, ptr %frame,
                      i64 %scratch_bytes, i64 %threads, i64 %token) {
  %owner.at = getelementptr i8, ptr %pool, i64 $OWNER
  %swap = cmpxchg ptr %owner.at, i64 0, i64 %token acq_rel monotonic
  %won = extractvalue { i64, i1 } %swap, 1
  br i1 %won, label %own, label %busy
own:
  %run = getelementptr i8, ptr %pool, i64 $RUN
  %phase.at = getelementptr i8, ptr %run, i64 $RUN_PHASE
  store i64 $NEXT, ptr %phase.at
  %launch.at = getelementptr i8, ptr %run, i64 $RUN_LAUNCH
  store i64 0, ptr %launch.at
  %deadline.at = getelementptr i8, ptr %run, i64 $RUN_DEADLINE
  store i64 0, ptr %deadline.at
  %threads.at = getelementptr i8, ptr %run, i64 $RUN_THREADS
  store i64 %threads, ptr %threads.at
  %active.at = getelementptr i8, ptr %pool, i64 $ACTIVE
  %active = load i32, ptr %active.at
  %active.64 = sext i32 %active to i64
  %have.at = getelementptr i8, ptr %pool, i64 $SCRATCH
  %have = load i64, ptr %have.at
  %manned = icmp sle i64 %threads, %active.64
  %roomy = icmp ule i64 %scratch_bytes, %have
  %ready = and i1 %manned, %roomy
  br i1 %ready, label %drive, label %setup
drive:
  %status = call i32 @smelt_drive(ptr %pool, ptr %run, ptr %chunks, ptr %launches, i64 %n,
                                  ptr %frame)
  ret i32 %status
setup:
  ret i32 $SETUP
busy:
  ret i32 $BUSY
}

; Abandon the run with this token if it owns the pool; return after the last begun chunk.
define void @smelt_abandon(ptr %pool, i64 %token) {
entry:
  %owner.at = getelementptr i8, ptr %pool, i64 $OWNER
  %owner = load atomic i64, ptr %owner.at acquire, align 8
  %mine = icmp eq i64 %owner, %token
  br i1 %mine, label %inspect, label %leave
inspect:
  %word.at = getelementptr i8, ptr %pool, i64 $WORD
  %run = getelementptr i8, ptr %pool, i64 $RUN
  %phase.at = getelementptr i8, ptr %run, i64 $RUN_PHASE
  %phase = load i64, ptr %phase.at
  %claiming = icmp eq i64 %phase, $CLAIM
  %waiting = icmp eq i64 %phase, $WAIT
  %parallel = or i1 %claiming, %waiting
  br i1 %parallel, label %revoke, label %free
revoke:                                   ; nobody can claim from here on
  %word = load atomic i64, ptr %word.at acquire, align 8
  %emptied = and i64 %word, -4294967296
  %swap = cmpxchg ptr %word.at, i64 %word, i64 %emptied acq_rel monotonic
  %won = extractvalue { i64, i1 } %swap, 1
  br i1 %won, label %count, label %revoke
count:
  %left = and i64 %word, 65535
  %batch.at = getelementptr i8, ptr %run, i64 $RUN_BATCH
  %batch = load i64, ptr %batch.at
  %own.at = getelementptr i8, ptr %run, i64 $RUN_MINE
  %own = load i64, ptr %own.at
  %claimed = sub i64 %batch, %left
  %expected = sub i64 %claimed, %own
  br label %wait
wait:
  %early = call i1 @await(ptr %pool, ptr %run, i64 %expected)
  br i1 %early, label %wait, label %free
free:
  store i64 $NEXT, ptr %phase.at
  store atomic i64 0, ptr %owner.at release, align 8
  br label %leave
leave:
  ret void
}
"""
