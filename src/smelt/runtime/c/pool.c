/* The thread pool: one native call runs all launches of a plan, without the GIL and without
   returning to Python between chunks.

   A pool is never freed. One call owns it at a time (`owner` holds the call's token). For a
   parallel launch the owner writes the job's data, then publishes the word. By compare-and-swap
   the owner claims the first remaining chunk, a helper the last one. So from launch to launch and
   from call to call each finds its own data in its caches, and where chunks get more expensive
   from first to last, the most expensive are not run last. A helper that slept between reading
   and claiming cannot do harm: the epoch has moved on, or no chunk is left, so its swap fails; and
   job data is only rewritten while no chunk is left, hence a swap that succeeds has read the right
   data. When no chunk is left the owner waits for the chunks that helpers have *begun*: a helper
   that never got the CPU is not waited for.

   An idle helper spins, then sleeps on a futex. A scheduler may place it on the owner's CPU
   although others are idle, and the two would alternate. So it sleeps with that CPU excluded from
   its affinity, and moves away at once when it finds itself there. The exclusion is lifted as soon
   as it has had its effect, so that the scheduler can balance freely.

   The owner looks at the clock between chunks and regularly returns PAUSED, so that Python can run
   signal handlers; smelt_drive continues where it stopped while helpers carry on, and
   smelt_abandon gives up the remaining chunks. Inside of a long chunk the kernel calls smelt_poll,
   which finds the run in a value of its thread: of the owner its run, of a helper the same with a
   bit set. When it is time, the main thread runs signal handlers there and then; if one raises, the
   exception and `abort` stay in the run, all its kernels return at their next poll, and smelt_drive
   returns STOPPED. */
#include "pool.h"

#define LEFT(word) ((word) & 0xffff)
#define BEGUN(word) ((word) >> 16 & 0xffff)
#define ONE_BEGUN ((u64)1 << 16)
#define ONE_EPOCH ((u64)1 << 32)
#define EPOCH(word) ((word) & -ONE_EPOCH)

enum { FUTEX_WAIT_PRIVATE = 128, FUTEX_WAKE_PRIVATE = 129, EVERYBODY = INT32_MAX };
enum { POLLS_PER_CLOCK = 64, AWAIT_SPINS = 1000, AWAIT_NANOS = 2000000 };
enum { CPU_WORDS = 16, CPU_BYTES = 8 * CPU_WORDS };

/* Spin-wait hint, which lets the sibling hyperthread run: native.py defines it per architecture. */
void smelt_relax(void);

/* ---- clock ---------------------------------------------------------------------------------- */

static i64 now(struct pool *pool)
{
    i64 time[2];
    pool->clock_gettime((i32)pool->monotonic, time);
    return time[0] * 1000000000 + time[1];
}

/* Whether the run should pause for Python; sets the next deadline when it should. */
static NOINLINE bool due(struct pool *pool, struct run *run)
{
    if (!pool->poll)
        return false;
    i64 time = now(pool), deadline = run->deadline;
    if (deadline && time <= deadline)
        return false;
    run->deadline = time + pool->poll;
    return deadline != 0;
}

/* ---- sleep and wake ------------------------------------------------------------------------- */

/* Sleep while *word == seen, at most `nanos` (0: for ever); may wake up spuriously. */
static NOINLINE void sleep_on(struct pool *pool, _Atomic i32 *word, i32 seen, i64 nanos)
{
    if (pool->futex) {
        i64 time[2] = {0, nanos};
        pool->syscall(pool->futex, word, (i64)FUTEX_WAIT_PRIVATE, (i64)seen,
                      nanos ? time : NULL, NULL, (i64)0);
    } else if (nanos) { /* waiting with a limit is not portable: yield the CPU */
        pool->sched_yield();
    } else {
        pool->mutex_lock(pool->mutex);
        while (LOAD(word, seq_cst) == seen)
            pool->cond_wait(pool->cond, pool->mutex);
        pool->mutex_unlock(pool->mutex);
    }
}

/* Wake up to `count` threads that sleep on the word. */
static NOINLINE void wake_on(struct pool *pool, _Atomic i32 *word, i32 count)
{
    if (pool->futex) {
        pool->syscall(pool->futex, word, (i64)FUTEX_WAKE_PRIVATE, (i64)count, NULL, NULL, (i64)0);
    } else {
        pool->mutex_lock(pool->mutex);
        pool->cond_broadcast(pool->cond);
        pool->mutex_unlock(pool->mutex);
    }
}

/* Wake every sleeping helper to check for work and for a new number of threads. */
EXPORT void smelt_wake(struct pool *pool)
{
    ADD(&pool->wake, 1);
    wake_on(pool, &pool->wake, EVERYBODY);
}

/* ---- polls of kernels ----------------------------------------------------------------------- */

#define HELPS ((u64)1)

/* Set the run that this thread's kernels poll; return the former one. */
static void *exchange_run(struct pool *pool, void *run)
{
    void *former = pool->getspecific(pool->key);
    pool->setspecific(pool->key, run);
    return former;
}

/* Run Python's signal handlers; true if one raised, or forked and this is the child. */
static NOINLINE bool handle_signals(struct pool *pool, struct run *run)
{
    i32 gil = pool->ensure();
    bool raised = pool->check_signals();
    if (raised)
        pool->fetch(&run->raised[0], &run->raised[1], &run->raised[2]);
    pool->release(gil);
    return raised || pool->forked;
}

/* What a kernel calls in a long task: 1 if it is to return. */
EXPORT i32 smelt_poll(const struct poll_words *words)
{
    u64 value = (u64)words->getspecific(words->key);
    struct run *run = (struct run *)(value & ~HELPS);
    if (!run) /* called without a pool */
        return 0;
    if (LOAD(&run->abort, relaxed))
        return 1;
    if (value & HELPS || !due(run->pool, run))
        return 0;
    if (run->pool->self() != run->pool->main) { /* handlers run in the main thread only */
        run->deadline = INT64_MAX;
        return 0;
    }
    if (!handle_signals(run->pool, run))
        return 0;
    STORE(&run->abort, 1, relaxed);
    return 1;
}

/* ---- start of helpers ----------------------------------------------------------------------- */

/* Start a thread in a slot with every signal blocked; 0 on success. */
static NOINLINE i32 spawn(struct pool *pool, struct slot *slot)
{
    _Alignas(16) char attr[128], all[128], old[128];
    i64 thread;
    pool->attr_init(attr);
    pool->attr_stack(attr, THREAD_STACK_BYTES);
    pool->attr_detach(attr, (i32)pool->detached);
    pool->sigfillset(all);
    pool->sigmask((i32)pool->sig_setmask, all, old);
    i32 status = pool->create(&thread, attr, pool->helper, slot);
    pool->sigmask((i32)pool->sig_setmask, old, NULL);
    return status;
}

/* Start a thread in every empty slot from 1 to active - 1. If the system refuses one, the other
   threads run its chunks. */
static NOINLINE void start_helpers(struct pool *pool)
{
    i32 active = LOAD(&pool->active, relaxed);
    for (i32 id = 1; id < active; id++) {
        struct slot *slot = &pool->slots[id];
        i32 empty = 0;
        if (!atomic_compare_exchange_strong(&slot->state, &empty, 1))
            continue;
        slot->id = id;
        slot->pool = pool;
        if (spawn(pool, slot)) {
            STORE(&slot->state, 0, seq_cst);
            break;
        }
    }
    STORE(&pool->started, active, relaxed);
}

/* ---- CPUs ----------------------------------------------------------------------------------- */

/* The CPU that this thread runs on, -1 if unknown. */
static i32 this_cpu(struct pool *pool)
{
    return pool->getcpu ? pool->getcpu() : -1;
}

/* Exclude a CPU from this thread's affinity, if `allowed` has any other. */
static NOINLINE void exclude(struct pool *pool, const u64 *allowed, i32 cpu)
{
    u64 mask[CPU_WORDS], any = 0;
    if ((u32)cpu >= 64 * CPU_WORDS)
        return;
    for (i32 k = 0; k < CPU_WORDS; k++) {
        mask[k] = allowed[k] & ~((u64)(k == cpu / 64) << cpu % 64);
        any |= mask[k];
    }
    if (any)
        pool->setaffinity(0, CPU_BYTES, mask);
}

/* Undo `exclude`; the thread stays on its CPU. */
static NOINLINE void widen(struct pool *pool, const u64 *allowed)
{
    if (pool->setaffinity)
        pool->setaffinity(0, CPU_BYTES, allowed);
}

/* ---- helpers -------------------------------------------------------------------------------- */

/* Whether a job has chunks left that this helper may run. */
static bool is_admitted(struct pool *pool, struct slot *slot, u64 word)
{
    return LEFT(word) && slot->id < LOAD(&pool->job_limit, relaxed);
}

/* Claim and run the last chunk of the job; false if there was nothing to do. */
static bool help(struct pool *pool, struct slot *slot, const u64 *allowed)
{
    u64 word;
    const struct chunk *first;
    char *frame;
    do {
        word = LOAD(&pool->word, acquire);
        if (!is_admitted(pool, slot, word))
            return false;
        i32 cpu = this_cpu(pool);
        if (cpu >= 0 && cpu == LOAD(&pool->job_cpu, relaxed)) {
            exclude(pool, allowed, cpu);
            widen(pool, allowed);
            word = LOAD(&pool->word, acquire); /* the move took a while: perhaps another job */
            if (!is_admitted(pool, slot, word))
                return true;
        }
        first = LOAD(&pool->job_first, relaxed);
        frame = LOAD(&pool->job_frame, relaxed);
    } while (!atomic_compare_exchange_strong_explicit(&pool->word, &word, word - 1,
                                                      memory_order_acq_rel, memory_order_relaxed));
    run_chunk(first + BEGUN(word) + LEFT(word) - 1, frame, slot->scratch);
    STORE(&slot->chunks, LOAD(&slot->chunks, relaxed) + 1, relaxed);
    ADD(&pool->finished, 1);
    if (LOAD(&pool->waiting, seq_cst))
        wake_on(pool, &pool->finished, 1);
    return true;
}

/* Sleep until there is work: announce the sleep first, then check once more. */
static void doze(struct pool *pool, struct slot *slot, const u64 *allowed)
{
    i32 seen = LOAD(&pool->wake, seq_cst);
    ADD(&pool->sleepers, 1);
    u64 word = LOAD(&pool->word, seq_cst);
    bool needed = slot->id < LOAD(&pool->active, seq_cst);
    if (needed && !is_admitted(pool, slot, word)) {
        /* so as not to wake up on the owner's CPU */
        exclude(pool, allowed, LOAD(&pool->job_cpu, relaxed));
        sleep_on(pool, &pool->wake, seen, 0);
        widen(pool, allowed);
    }
    ADD(&pool->sleepers, -1);
}

/* Leave the slot; false if the number of threads was raised meanwhile and it is still ours. */
static bool retire(struct pool *pool, struct slot *slot)
{
    i32 empty = 0;
    STORE(&slot->state, 0, seq_cst);
    return slot->id >= LOAD(&pool->active, seq_cst)
        || !atomic_compare_exchange_strong(&slot->state, &empty, 1);
}

/* What a helper thread runs. */
EXPORT void *smelt_helper(struct slot *slot)
{
    struct pool *pool = slot->pool;
    u64 allowed[CPU_WORDS];
    exchange_run(pool, (char *)&pool->run + HELPS);
    for (i32 k = 0; k < CPU_WORDS; k++)
        allowed[k] = 0;
    if (pool->getaffinity)
        pool->getaffinity(0, CPU_BYTES, allowed);
    for (;;) {
        i64 idle_since = now(pool);
        for (i32 polls = 0;;) {
            if (slot->id >= LOAD(&pool->active, acquire)) {
                if (retire(pool, slot))
                    return NULL;
                break;
            }
            if (help(pool, slot, allowed))
                break;
            smelt_relax();
            if (++polls <= POLLS_PER_CLOCK)
                continue;
            polls = 0;
            if (now(pool) - idle_since > pool->spin) {
                doze(pool, slot, allowed);
                break;
            }
        }
    }
}

/* ---- the owner ------------------------------------------------------------------------------ */

/* Wait until helpers have finished `goal` chunks; true if the run should pause instead. */
static bool await(struct pool *pool, struct run *run, i32 goal)
{
    for (i32 turn = 0; turn <= AWAIT_SPINS; turn++) {
        if (LOAD(&pool->finished, acquire) == goal)
            return false;
        smelt_relax();
    }
    while (!due(pool, run)) {
        STORE(&pool->waiting, 1, seq_cst);
        i32 seen = LOAD(&pool->finished, seq_cst);
        if (seen != goal)
            sleep_on(pool, &pool->finished, seen, AWAIT_NANOS);
        STORE(&pool->waiting, 0, seq_cst);
        if (LOAD(&pool->finished, acquire) == goal)
            return false;
    }
    return true;
}

/* Offer the launch's next chunks to the helpers: job data, then the word, then wake sleepers. */
static void publish(struct pool *pool, struct run *run, char *frame)
{
    i64 batch = run->end - run->row;
    if (batch > pool->max_chunks)
        batch = pool->max_chunks;
    i32 limit = (i32)run->threads;
    STORE(&pool->finished, 0, relaxed);
    STORE(&pool->job_first, run->row, relaxed);
    STORE(&pool->job_frame, frame, relaxed);
    STORE(&pool->job_cpu, this_cpu(pool), relaxed);
    STORE(&pool->job_limit, limit, relaxed);
    run->row += batch;
    run->batch = batch;
    run->mine = 0;
    run->phase = CLAIM;
    u64 epoch = EPOCH(LOAD(&pool->word, relaxed)) + ONE_EPOCH;
    STORE(&pool->word, epoch | (u64)batch, seq_cst);
    if (LOAD(&pool->sleepers, seq_cst) > 0) {
        ADD(&pool->wake, 1);
        /* where some helpers are not admitted, a wake-up could reach only those: wake all */
        bool all = LOAD(&pool->active, relaxed) != limit || batch > MAX_THREADS;
        wake_on(pool, &pool->wake, all ? MAX_THREADS : (i32)batch - 1);
    }
}

/* Run chunks of the batch, from the first; DONE if none is left. */
static i32 claim(struct pool *pool, struct run *run, char *frame)
{
    u64 word = LOAD(&pool->word, acquire);
    while (LEFT(word)) {
        if (!atomic_compare_exchange_strong_explicit(&pool->word, &word, word + ONE_BEGUN - 1,
                                                     memory_order_acq_rel, memory_order_acquire))
            continue;
        const struct chunk *first = LOAD(&pool->job_first, relaxed);
        run_chunk(first + run->mine++, frame, run->scratch);
        if (LOAD(&run->abort, relaxed))
            return STOPPED;
        if (LEFT(word) == 1)
            break;
        i32 cpu = this_cpu(pool); /* helpers avoid the CPU of the owner */
        if (cpu != LOAD(&pool->job_cpu, relaxed))
            STORE(&pool->job_cpu, cpu, relaxed);
        if (due(pool, run))
            return PAUSED;
        word = LOAD(&pool->word, acquire);
    }
    return DONE;
}

/* Take the next launch. */
static void begin(struct pool *pool, struct run *run, const struct chunk *chunks,
                  const struct launch *launches)
{
    const struct launch *launch = &launches[run->launch++];
    run->row = chunks + launch->first;
    run->end = run->row + launch->count;
    run->phase = ALONE;
    if (launch->flags & PARALLEL && launch->count > 1 && run->threads > 1 && !run->solo) {
        run->phase = PUBLISH;
        if (LOAD(&pool->started, relaxed) != LOAD(&pool->active, relaxed))
            start_helpers(pool);
    }
}

/* End a launch; true if the run should pause before the next one. */
static bool end_launch(struct pool *pool, struct run *run, i64 launches)
{
    run->phase = NEXT;
    return run->launch < launches && due(pool, run);
}

static i32 drive(struct pool *pool, struct run *run, const struct chunk *chunks,
                 const struct launch *launches, i64 count, char *frame)
{
    i32 status;
    for (;;) {
        switch (run->phase) {
        case NEXT:
            if (run->launch >= count) {
                if (!run->solo)
                    STORE(&pool->owner, 0, release);
                return DONE;
            }
            begin(pool, run, chunks, launches);
            break;
        case ALONE:
            while (run->row != run->end) {
                run_chunk(run->row, frame, run->scratch);
                if (LOAD(&run->abort, relaxed))
                    return STOPPED;
                run->row++;
                if (run->row != run->end && due(pool, run))
                    return PAUSED;
            }
            if (end_launch(pool, run, count))
                return PAUSED;
            break;
        case PUBLISH:
            if (run->row != run->end)
                publish(pool, run, frame);
            else if (end_launch(pool, run, count))
                return PAUSED;
            break;
        case CLAIM:
            if ((status = claim(pool, run, frame)) != DONE)
                return status;
            run->phase = WAIT;
            break;
        case WAIT:
            if (await(pool, run, (i32)(run->batch - run->mine)))
                return PAUSED;
            run->phase = PUBLISH;
            break;
        }
    }
}

/* Run launches from the state in `run` until all are done or the run should pause; what kernels poll
   is this run meanwhile. */
EXPORT i32 smelt_drive(struct pool *pool, struct run *run, const struct chunk *chunks,
                       const struct launch *launches, i64 count, char *frame)
{
    void *former = exchange_run(pool, run);
    i32 status = drive(pool, run, chunks, launches, count, frame);
    exchange_run(pool, former);
    return status;
}

/* Acquire the pool and run; or return that it is busy, or that it must be set up first. */
EXPORT i32 smelt_run(struct pool *pool, const struct chunk *chunks, const struct launch *launches,
                     i64 count, char *frame, i64 scratch_bytes, i64 threads, i64 token)
{
    i64 nobody = 0;
    if (!atomic_compare_exchange_strong_explicit(&pool->owner, &nobody, token,
                                                 memory_order_acq_rel, memory_order_relaxed))
        return BUSY;
    struct run *run = &pool->run;
    run->phase = NEXT;
    run->launch = 0;
    run->deadline = 0;
    STORE(&run->abort, 0, relaxed);
    run->threads = threads;
    if (threads > LOAD(&pool->active, relaxed) || scratch_bytes > pool->scratch)
        return SETUP;
    return smelt_drive(pool, run, chunks, launches, count, frame);
}

/* Abandon the run with this token if it owns the pool; return after the last begun chunk. */
EXPORT void smelt_abandon(struct pool *pool, i64 token)
{
    struct run *run = &pool->run;
    if (LOAD(&pool->owner, acquire) != token)
        return;
    STORE(&run->abort, 1, relaxed);
    if (run->phase == CLAIM || run->phase == WAIT) {
        u64 word = LOAD(&pool->word, acquire);
        while (!atomic_compare_exchange_strong_explicit(&pool->word, &word, EPOCH(word),
                                                        memory_order_acq_rel, memory_order_acquire))
            ; /* nobody can claim once it succeeds */
        i32 claimed = (i32)(run->batch - (i64)LEFT(word) - run->mine);
        while (await(pool, run, claimed))
            ;
    }
    run->phase = NEXT;
    STORE(&pool->owner, 0, release);
}
