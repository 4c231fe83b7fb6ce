"""LLVM IR of the thread pool: sleep and wake, the loops of helpers and of a call's owner.

`native.ir` substitutes a number for each `$NAME`; `smelt.runtime.native` explains the protocol.

>>> "@smelt_helper" in HELPER, "@smelt_drive" in DRIVE
(True, True)
"""

from __future__ import annotations

from typing import Final

CLOCK: Final = """
; Return the monotonic clock in ns.
define internal i64 @now(ptr %pool) {
  %time = alloca [2 x i64], align 16
  %at = getelementptr i8, ptr %pool, i64 $CLOCK_GETTIME
  %clock = load ptr, ptr %at
  %status = call i32 %clock(i32 $MONOTONIC, ptr %time)
  %seconds = load i64, ptr %time
  %nanos.at = getelementptr i8, ptr %time, i64 8
  %nanos = load i64, ptr %nanos.at
  %whole = mul i64 %seconds, 1000000000
  %sum = add i64 %whole, %nanos
  ret i64 %sum
}

; Whether the run should pause for Python; sets the next deadline when it should.
define internal i1 @due(ptr %pool, ptr %run) {
  %poll.at = getelementptr i8, ptr %pool, i64 $POLL
  %poll = load i64, ptr %poll.at
  %never = icmp eq i64 %poll, 0
  br i1 %never, label %no, label %look
look:
  %now = call i64 @now(ptr %pool)
  %deadline.at = getelementptr i8, ptr %run, i64 $RUN_DEADLINE
  %deadline = load i64, ptr %deadline.at
  %unset = icmp eq i64 %deadline, 0
  %past = icmp sgt i64 %now, %deadline
  %reset = or i1 %unset, %past
  br i1 %reset, label %set, label %no
set:
  %next = add i64 %now, %poll
  store i64 %next, ptr %deadline.at
  %answer = xor i1 %unset, true
  ret i1 %answer
no:
  ret i1 false
}

define internal void @call_chunk(ptr %row, ptr %frame, ptr %scratch) alwaysinline {
  %kernel = load ptr, ptr %row
  %offset.at = getelementptr i8, ptr %row, i64 8
  %offset = load i64, ptr %offset.at
  %begin.at = getelementptr i8, ptr %row, i64 16
  %begin = load i64, ptr %begin.at
  %end.at = getelementptr i8, ptr %row, i64 24
  %end = load i64, ptr %end.at
  %args = getelementptr i8, ptr %frame, i64 %offset
  call void %kernel(ptr %args, i64 %begin, i64 %end, ptr %scratch)
  ret void
}

$PAUSE
"""

FUTEX_SLEEP: Final = """
; Sleep while *word == seen, at most `nanos` (0: for ever); may wake up spuriously.
define internal void @sleep_on(ptr %pool, ptr %word, i32 %seen, i64 %nanos) noinline {
  %time = alloca [2 x i64], align 16
  %nanos.at = getelementptr i8, ptr %time, i64 8
  store i64 0, ptr %time
  store i64 %nanos, ptr %nanos.at
  %forever = icmp eq i64 %nanos, 0
  %limit = select i1 %forever, ptr null, ptr %time
  %at = getelementptr i8, ptr %pool, i64 $SYSCALL
  %syscall = load ptr, ptr %at
  ; 128 = FUTEX_WAIT | FUTEX_PRIVATE_FLAG
  %status = call i64 (i64, ...) %syscall(i64 $FUTEX, ptr %word, i64 128, i32 %seen, ptr %limit,
                                         ptr null, i64 0)
  ret void
}

; Wake up to `count` threads that sleep on the word.
define internal void @wake_on(ptr %pool, ptr %word, i32 %count) noinline {
  %at = getelementptr i8, ptr %pool, i64 $SYSCALL
  %syscall = load ptr, ptr %at
  ; 129 = FUTEX_WAKE | FUTEX_PRIVATE_FLAG
  %status = call i64 (i64, ...) %syscall(i64 $FUTEX, ptr %word, i64 129, i32 %count, ptr null,
                                         ptr null, i64 0)
  ret void
}
"""

# Without futexes: a single mutex and condition variable; a bounded sleep just yields the CPU.
COND_SLEEP: Final = """
define internal void @sleep_on(ptr %pool, ptr %word, i32 %seen, i64 %nanos) noinline {
  %bounded = icmp ne i64 %nanos, 0
  br i1 %bounded, label %yield, label %wait
yield:
  %yield.at = getelementptr i8, ptr %pool, i64 $SCHED_YIELD
  %sched_yield = load ptr, ptr %yield.at
  %status = call i32 %sched_yield()
  ret void
wait:
  %mutex = getelementptr i8, ptr %pool, i64 $MUTEX
  %cond = getelementptr i8, ptr %pool, i64 $COND
  %lock.at = getelementptr i8, ptr %pool, i64 $MUTEX_LOCK
  %lock = load ptr, ptr %lock.at
  %unlock.at = getelementptr i8, ptr %pool, i64 $MUTEX_UNLOCK
  %unlock = load ptr, ptr %unlock.at
  %wait.at = getelementptr i8, ptr %pool, i64 $COND_WAIT
  %cond_wait = load ptr, ptr %wait.at
  %locked = call i32 %lock(ptr %mutex)
  br label %check
check:
  %value = load atomic i32, ptr %word seq_cst, align 4
  %same = icmp eq i32 %value, %seen
  br i1 %same, label %again, label %leave
again:
  %waited = call i32 %cond_wait(ptr %cond, ptr %mutex)
  br label %check
leave:
  %unlocked = call i32 %unlock(ptr %mutex)
  ret void
}

define internal void @wake_on(ptr %pool, ptr %word, i32 %count) noinline {
  %mutex = getelementptr i8, ptr %pool, i64 $MUTEX
  %cond = getelementptr i8, ptr %pool, i64 $COND
  %lock.at = getelementptr i8, ptr %pool, i64 $MUTEX_LOCK
  %lock = load ptr, ptr %lock.at
  %unlock.at = getelementptr i8, ptr %pool, i64 $MUTEX_UNLOCK
  %unlock = load ptr, ptr %unlock.at
  %broadcast.at = getelementptr i8, ptr %pool, i64 $COND_BROADCAST
  %broadcast = load ptr, ptr %broadcast.at
  %locked = call i32 %lock(ptr %mutex)
  %told = call i32 %broadcast(ptr %cond)
  %unlocked = call i32 %unlock(ptr %mutex)
  ret void
}
"""

THREADS: Final = """
; Start a thread in a slot with every signal blocked; 0 on success.
define internal i32 @spawn(ptr %pool, ptr %slot) noinline {
  %attr = alloca [128 x i8], align 16
  %all = alloca [128 x i8], align 16
  %old = alloca [128 x i8], align 16
  %thread = alloca i64, align 16
  %init.at = getelementptr i8, ptr %pool, i64 $ATTR_INIT
  %init = load ptr, ptr %init.at
  %stack.at = getelementptr i8, ptr %pool, i64 $ATTR_STACK
  %stack = load ptr, ptr %stack.at
  %detach.at = getelementptr i8, ptr %pool, i64 $ATTR_DETACH
  %detach = load ptr, ptr %detach.at
  %create.at = getelementptr i8, ptr %pool, i64 $CREATE
  %create = load ptr, ptr %create.at
  %fill.at = getelementptr i8, ptr %pool, i64 $SIGFILLSET
  %fill = load ptr, ptr %fill.at
  %mask.at = getelementptr i8, ptr %pool, i64 $SIGMASK
  %mask = load ptr, ptr %mask.at
  %helper.at = getelementptr i8, ptr %pool, i64 $HELPER
  %helper = load ptr, ptr %helper.at
  %s1 = call i32 %init(ptr %attr)
  %s2 = call i32 %stack(ptr %attr, i64 $STACK)
  %s3 = call i32 %detach(ptr %attr, i32 $DETACHED)
  %s4 = call i32 %fill(ptr %all)
  %s5 = call i32 %mask(i32 $SIG_SETMASK, ptr %all, ptr %old)
  %status = call i32 %create(ptr %thread, ptr %attr, ptr %helper, ptr %slot)
  %s6 = call i32 %mask(i32 $SIG_SETMASK, ptr %old, ptr null)
  ret i32 %status
}

; Start a thread in every empty slot from 1 to ACTIVE - 1. If the system refuses one, the other
; threads run its chunks.
define internal void @start_helpers(ptr %pool) noinline {
entry:
  %active.at = getelementptr i8, ptr %pool, i64 $ACTIVE
  %active = load i32, ptr %active.at
  br label %loop
loop:
  %id = phi i32 [ 1, %entry ], [ %next, %step ]
  %more = icmp slt i32 %id, %active
  br i1 %more, label %check, label %leave
check:
  %wide = zext i32 %id to i64
  %offset = mul i64 %wide, $SLOT_SIZE
  %slots = getelementptr i8, ptr %pool, i64 $SLOTS
  %slot = getelementptr i8, ptr %slots, i64 %offset
  %state.at = getelementptr i8, ptr %slot, i64 $SLOT_STATE
  %swap = cmpxchg ptr %state.at, i32 0, i32 1 seq_cst seq_cst
  %won = extractvalue { i32, i1 } %swap, 1
  br i1 %won, label %start, label %step
start:
  %id.at = getelementptr i8, ptr %slot, i64 $SLOT_ID
  store i32 %id, ptr %id.at
  %pool.at = getelementptr i8, ptr %slot, i64 $SLOT_POOL
  store ptr %pool, ptr %pool.at
  %status = call i32 @spawn(ptr %pool, ptr %slot)
  %failed = icmp ne i32 %status, 0
  br i1 %failed, label %give_up, label %step
give_up:
  store atomic i32 0, ptr %state.at seq_cst, align 4
  br label %leave
step:
  %next = add i32 %id, 1
  br label %loop
leave:
  %started.at = getelementptr i8, ptr %pool, i64 $STARTED
  store i32 %active, ptr %started.at
  ret void
}

; Wake every sleeping helper to check for work and for a new number of threads.
define void @smelt_wake(ptr %pool) {
  %wake = getelementptr i8, ptr %pool, i64 $WAKE
  %old = atomicrmw add ptr %wake, i32 1 seq_cst
  call void @wake_on(ptr %pool, ptr %wake, i32 2147483647)
  ret void
}
"""

PLACE: Final = """
; Return the CPU that this thread runs on, -1 if unknown.
define internal i32 @this_cpu(ptr %pool) {
  %at = getelementptr i8, ptr %pool, i64 $GETCPU
  %getcpu = load ptr, ptr %at
  %unknown = icmp eq ptr %getcpu, null
  br i1 %unknown, label %no, label %ask
ask:
  %cpu = call i32 %getcpu()
  ret i32 %cpu
no:
  ret i32 -1
}

; Exclude a CPU from this thread's affinity, if `allowed` (128 bytes) has any other.
define internal void @exclude(ptr %pool, ptr %allowed, i32 %cpu) noinline {
entry:
  %mask = alloca [16 x i64], align 16
  %small = icmp ult i32 %cpu, 1024
  br i1 %small, label %copy, label %leave
copy:
  call void @llvm.memcpy.p0.p0.i64(ptr %mask, ptr %allowed, i64 128, i1 false)
  %cpu.64 = zext i32 %cpu to i64
  %index = lshr i64 %cpu.64, 6
  %bit = and i64 %cpu.64, 63
  %one = shl i64 1, %bit
  %others = xor i64 %one, -1
  %word.at = getelementptr i64, ptr %mask, i64 %index
  %word = load i64, ptr %word.at
  %word.less = and i64 %word, %others
  store i64 %word.less, ptr %word.at
  br label %loop
loop:
  %i = phi i64 [ 0, %copy ], [ %i.next, %loop ]
  %any = phi i64 [ 0, %copy ], [ %any.next, %loop ]
  %at = getelementptr i64, ptr %mask, i64 %i
  %value = load i64, ptr %at
  %any.next = or i64 %any, %value
  %i.next = add i64 %i, 1
  %more = icmp ult i64 %i.next, 16
  br i1 %more, label %loop, label %decide
decide:
  %possible = icmp ne i64 %any.next, 0
  br i1 %possible, label %move, label %leave
move:
  %set.at = getelementptr i8, ptr %pool, i64 $SETAFFINITY
  %set = load ptr, ptr %set.at
  %moved = call i32 %set(i32 0, i64 128, ptr %mask)
  ret void
leave:
  ret void
}

; Undo `exclude`; the thread stays on its CPU.
define internal void @widen(ptr %pool, ptr %allowed) noinline {
  %set.at = getelementptr i8, ptr %pool, i64 $SETAFFINITY
  %set = load ptr, ptr %set.at
  %missing = icmp eq ptr %set, null
  br i1 %missing, label %leave, label %lift
lift:
  %status = call i32 %set(i32 0, i64 128, ptr %allowed)
  ret void
leave:
  ret void
}

declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
"""

HELPER: Final = """
define ptr @smelt_helper(ptr %slot) {
entry:
  %allowed = alloca [16 x i64], align 16
  call void @llvm.memset.p0.i64(ptr %allowed, i8 0, i64 128, i1 false)
  %pool.at = getelementptr i8, ptr %slot, i64 $SLOT_POOL
  %pool = load ptr, ptr %pool.at
  %id.at = getelementptr i8, ptr %slot, i64 $SLOT_ID
  %id = load i32, ptr %id.at
  %state.at = getelementptr i8, ptr %slot, i64 $SLOT_STATE
  %scratch.at = getelementptr i8, ptr %slot, i64 $SLOT_SCRATCH
  %chunks.at = getelementptr i8, ptr %slot, i64 $SLOT_CHUNKS
  %word.at = getelementptr i8, ptr %pool, i64 $WORD
  %finished.at = getelementptr i8, ptr %pool, i64 $FINISHED
  %waiting.at = getelementptr i8, ptr %pool, i64 $WAITING
  %job_first.at = getelementptr i8, ptr %pool, i64 $JOB_FIRST
  %job_frame.at = getelementptr i8, ptr %pool, i64 $JOB_FRAME
  %wake.at = getelementptr i8, ptr %pool, i64 $WAKE
  %sleepers.at = getelementptr i8, ptr %pool, i64 $SLEEPERS
  %active.at = getelementptr i8, ptr %pool, i64 $ACTIVE
  %spin.at = getelementptr i8, ptr %pool, i64 $SPIN
  %job_cpu.at = getelementptr i8, ptr %pool, i64 $JOB_CPU
  %job_limit.at = getelementptr i8, ptr %pool, i64 $JOB_LIMIT
  %getaffinity.at = getelementptr i8, ptr %pool, i64 $GETAFFINITY
  %getaffinity = load ptr, ptr %getaffinity.at
  %run = getelementptr i8, ptr %pool, i64 $RUN
  %run.helped = getelementptr i8, ptr %run, i64 1
  %no.run = call ptr @exchange_run(ptr %pool, ptr %run.helped)
  %no_affinity = icmp eq ptr %getaffinity, null
  br i1 %no_affinity, label %fresh, label %whereabouts
whereabouts:
  %a0 = call i32 %getaffinity(i32 0, i64 128, ptr %allowed)
  br label %fresh

fresh:                                    ; idle from now on
  %idle_since = call i64 @now(ptr %pool)
  br label %look
look:
  %polls = phi i32 [ 0, %fresh ], [ 0, %still ], [ %polls.next, %pause ]
  %active = load atomic i32, ptr %active.at acquire, align 4
  %superfluous = icmp sge i32 %id, %active
  br i1 %superfluous, label %retire, label %read
read:
  %word = load atomic i64, ptr %word.at acquire, align 8
  %left = and i64 %word, 65535
  %none = icmp eq i64 %left, 0
  br i1 %none, label %pause, label %admit
admit:
  %limit = load atomic i32, ptr %job_limit.at monotonic, align 4
  %admitted = icmp slt i32 %id, %limit
  br i1 %admitted, label %place, label %pause
place:
  %cpu = call i32 @this_cpu(ptr %pool)
  %owner_cpu = load atomic i32, ptr %job_cpu.at monotonic, align 4
  %same = icmp eq i32 %cpu, %owner_cpu
  %known = icmp sge i32 %cpu, 0
  %clash = and i1 %same, %known
  br i1 %clash, label %move, label %claim
move:
  call void @exclude(ptr %pool, ptr %allowed, i32 %cpu)
  call void @widen(ptr %pool, ptr %allowed)
  br label %read.again
read.again:                               ; the move may have taken a while
  %word.moved = load atomic i64, ptr %word.at acquire, align 8
  %left.moved = and i64 %word.moved, 65535
  %none.moved = icmp eq i64 %left.moved, 0
  br i1 %none.moved, label %fresh, label %admit.again
admit.again:                              ; this may be another job
  %limit.moved = load atomic i32, ptr %job_limit.at monotonic, align 4
  %admitted.moved = icmp slt i32 %id, %limit.moved
  br i1 %admitted.moved, label %claim, label %pause
claim:
  %now.word = phi i64 [ %word, %place ], [ %word.moved, %admit.again ]
  %now.left = phi i64 [ %left, %place ], [ %left.moved, %admit.again ]
  %first.int = load atomic i64, ptr %job_first.at monotonic, align 8
  %frame.int = load atomic i64, ptr %job_frame.at monotonic, align 8
  %less = sub i64 %now.word, 1
  %swap = cmpxchg ptr %word.at, i64 %now.word, i64 %less acq_rel monotonic
  %won = extractvalue { i64, i1 } %swap, 1
  br i1 %won, label %work, label %read
work:                                     ; the last chunk
  %begun.high = lshr i64 %now.word, 16
  %begun = and i64 %begun.high, 65535
  %behind = add i64 %begun, %now.left
  %index = sub i64 %behind, 1
  %along = mul i64 %index, 32
  %row.int = add i64 %first.int, %along
  %row = inttoptr i64 %row.int to ptr
  %frame = inttoptr i64 %frame.int to ptr
  %scratch = load ptr, ptr %scratch.at
  call void @call_chunk(ptr %row, ptr %frame, ptr %scratch)
  %chunks = load i64, ptr %chunks.at
  %chunks.next = add i64 %chunks, 1
  store atomic i64 %chunks.next, ptr %chunks.at monotonic, align 8
  %before = atomicrmw add ptr %finished.at, i32 1 seq_cst
  %waiting = load atomic i32, ptr %waiting.at seq_cst, align 4
  %asleep = icmp ne i32 %waiting, 0
  br i1 %asleep, label %tell, label %fresh
tell:
  call void @wake_on(ptr %pool, ptr %finished.at, i32 1)
  br label %fresh

pause:
  call void @relax()
  %polls.next = add i32 %polls, 1
  %often = icmp sgt i32 %polls.next, 64
  br i1 %often, label %still, label %look
still:
  %now = call i64 @now(ptr %pool)
  %idle = sub i64 %now, %idle_since
  %spin = load i64, ptr %spin.at
  %tired = icmp sgt i64 %idle, %spin
  br i1 %tired, label %drowse, label %look

drowse:                                   ; announce the sleep first, then check once more
  %seen = load atomic i32, ptr %wake.at seq_cst, align 4
  %s0 = atomicrmw add ptr %sleepers.at, i32 1 seq_cst
  %word.again = load atomic i64, ptr %word.at seq_cst, align 8
  %left.again = and i64 %word.again, 65535
  %active.again = load atomic i32, ptr %active.at seq_cst, align 4
  %no_work.left = icmp eq i64 %left.again, 0
  %limit.again = load atomic i32, ptr %job_limit.at monotonic, align 4
  %shut_out = icmp sge i32 %id, %limit.again
  %no_work = or i1 %no_work.left, %shut_out
  %needed = icmp slt i32 %id, %active.again
  %sleep = and i1 %no_work, %needed
  br i1 %sleep, label %asleep.now, label %awake
asleep.now:                               ; so as not to wake up on the owner's CPU
  %last_cpu = load atomic i32, ptr %job_cpu.at monotonic, align 4
  call void @exclude(ptr %pool, ptr %allowed, i32 %last_cpu)
  call void @sleep_on(ptr %pool, ptr %wake.at, i32 %seen, i64 0)
  call void @widen(ptr %pool, ptr %allowed)
  br label %awake
awake:
  %s1 = atomicrmw sub ptr %sleepers.at, i32 1 seq_cst
  br label %fresh

retire:                                   ; unless the number of threads was raised meanwhile
  store atomic i32 0, ptr %state.at seq_cst, align 4
  %active.last = load atomic i32, ptr %active.at seq_cst, align 4
  %unneeded = icmp sge i32 %id, %active.last
  br i1 %unneeded, label %exit, label %return
return:
  %reclaim = cmpxchg ptr %state.at, i32 0, i32 1 seq_cst seq_cst
  %mine = extractvalue { i32, i1 } %reclaim, 1
  br i1 %mine, label %fresh, label %exit
exit:
  ret ptr null
}

declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
"""


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
; Run launches from the state in the run block until all are done or the run should pause; what
; kernels poll is this run meanwhile.
define i32 @smelt_drive(ptr %pool, ptr %run, ptr %chunks, ptr %launches, i64 %n, ptr %frame) {
  %former = call ptr @exchange_run(ptr %pool, ptr %run)
  %status = call i32 @drive(ptr %pool, ptr %run, ptr %chunks, ptr %launches, i64 %n, ptr %frame)
  %own = call ptr @exchange_run(ptr %pool, ptr %former)
  ret i32 %status
}

define internal i32 @drive(ptr %pool, ptr %run, ptr %chunks, ptr %launches, i64 %n, ptr %frame) {
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
  %abort.at = getelementptr i8, ptr %run, i64 $RUN_ABORT
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
  %serial.abort = load atomic i64, ptr %abort.at monotonic, align 8
  %serial.aborted = icmp ne i64 %serial.abort, 0
  br i1 %serial.aborted, label %stopped, label %serial.next
serial.next:
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
  %claim.abort = load atomic i64, ptr %abort.at monotonic, align 8
  %claim.aborted = icmp ne i64 %claim.abort, 0
  br i1 %claim.aborted, label %stopped, label %claim.next
claim.next:
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
stopped:
  ret i32 $STOPPED
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
  %abort.at = getelementptr i8, ptr %run, i64 $RUN_ABORT
  store atomic i64 0, ptr %abort.at monotonic, align 8
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
  %abort.at = getelementptr i8, ptr %run, i64 $RUN_ABORT
  store atomic i64 1, ptr %abort.at monotonic, align 8
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
