/* Memory of the thread pool, which Python allocates and fills: see pool.c for the protocol. */
#ifndef SMELT_POOL_H
#define SMELT_POOL_H

#include "base.h"

enum status {
    DONE,   /* everything ran and the pool is free again */
    PAUSED, /* time for Python to handle signals; call smelt_drive to continue */
    BUSY,   /* another call owns the pool; nothing ran */
    SETUP,  /* the pool is owned, but needs threads or scratch before smelt_drive */
    STOPPED, /* a signal handler raised inside of a kernel; the exception is in `run` */
};

enum phase {
    NEXT,    /* take the next launch */
    ALONE,   /* run chunks from `row` to `end` in this thread */
    PUBLISH, /* offer the next batch of chunks to the helpers */
    CLAIM,   /* take chunks of the batch */
    WAIT,    /* for chunks of the batch that helpers have begun */
};

enum pool_limits {
    MAX_THREADS = 64,
    THREAD_STACK_BYTES = 1 << 20,
    APART = 128, /* bytes between fields of different threads: cache lines are fetched in pairs */
};

struct launch {
    i64 first; /* chunk */
    i64 count;
    i64 flags;
    i64 unused;
};

enum launch_flags { PARALLEL = 1 };

/* State of one call; all of it is here, so that a pause can return to Python. */
struct run {
    i64 phase;
    i64 launch; /* index of the next one */
    const struct chunk *row; /* next chunk to run or to publish */
    const struct chunk *end; /* of the launch */
    i64 batch; /* chunks published */
    i64 mine; /* of those, claimed by the owner */
    i64 deadline; /* time of the next pause, 0 if the clock was not read yet */
    i64 solo; /* 1 for a call that does not own the pool */
    char *scratch;
    i64 threads; /* that may work on this run */
    _Atomic i64 abort; /* 1 when kernels of this run are to return at their next poll */
    struct pool *pool;
    void *raised[3]; /* type, value and traceback of what a signal handler raised */
};

/* What kernels poll with: `smelt.runtime.elf` fills it. */
struct poll_words {
    i32 (*poll)(const struct poll_words *words); /* smelt_poll */
    i64 key;
    void *(*getspecific)(i64 key);
};

/* A helper's place; slot 0 is the caller's. */
struct slot {
    _Alignas(APART) _Atomic i32 state; /* 1 while a thread lives here */
    i32 id; /* from 1 */
    struct pool *pool;
    char *scratch;
    _Atomic i64 chunks; /* run so far */
};

struct pool {
    _Atomic u64 word; /* (epoch << 32) | (chunks the owner began << 16) | chunks left */
    _Alignas(APART) _Atomic i32 finished; /* chunks of this job that helpers finished (futex) */
    _Atomic i32 waiting; /* 1 while the owner sleeps on `finished` */
    _Alignas(APART) const struct chunk *_Atomic job_first;
    char *_Atomic job_frame;
    _Atomic i32 job_cpu; /* that the owner runs on */
    _Atomic i32 job_limit; /* threads that may work on the job, the owner included */
    _Alignas(APART) _Atomic i32 wake; /* counts up to wake sleeping helpers (futex) */
    _Atomic i32 sleepers; /* helpers asleep or about to be */
    _Alignas(APART) _Atomic i64 owner; /* token of the owning call, 0 when free */
    _Alignas(APART) _Atomic i32 active; /* threads that the pool is set up for, caller included */
    _Atomic i32 started; /* equal to `active` once the helpers were started */
    i64 scratch; /* bytes that every active slot has */
    i64 spin; /* nanoseconds that an idle helper spins */
    i64 poll; /* nanoseconds between two pauses, 0 for never */
    i64 max_chunks; /* a launch of more is published in parts */
    void *(*helper)(struct slot *); /* smelt_helper */

    /* constants and functions of the system's C library */
    i64 futex; /* number of the system call, 0 if there is none */
    i64 monotonic;
    i64 sig_setmask;
    i64 detached;
    i32 (*clock_gettime)(i32 clock, i64 *time);
    i64 (*syscall)(i64 number, ...);
    i32 (*sched_yield)(void);
    i32 (*attr_init)(char *attr);
    i32 (*attr_stack)(char *attr, i64 nbytes);
    i32 (*attr_detach)(char *attr, i32 state);
    i32 (*create)(i64 *thread, char *attr, void *(*start)(struct slot *), struct slot *slot);
    i32 (*sigfillset)(char *set);
    i32 (*sigmask)(i32 how, const char *set, char *old);
    i32 (*mutex_lock)(char *mutex);
    i32 (*mutex_unlock)(char *mutex);
    i32 (*cond_wait)(char *cond, char *mutex);
    i32 (*cond_broadcast)(char *cond);
    i32 (*getcpu)(void); /* these three are null where the system has no such function */
    i32 (*getaffinity)(i32 thread, i64 nbytes, u64 *mask);
    i32 (*setaffinity)(i32 thread, i64 nbytes, const u64 *mask);

    /* polls of kernels: a value of each thread, and functions of Python */
    i64 key;
    void *(*getspecific)(i64 key);
    i32 (*setspecific)(i64 key, void *value);
    i64 (*self)(void);
    i64 main; /* what it returns in Python's main thread */
    i32 (*ensure)(void);
    void (*release)(i32 gil);
    i32 (*check_signals)(void);
    void (*fetch)(void **type, void **value, void **traceback);
    i64 forked; /* 1 in the child of a fork: no helper will finish what it began */

    _Alignas(APART) char mutex[128]; /* storage of a pthread mutex and condition without futexes */
    char cond[128];
    _Alignas(APART) struct run run; /* the owner's */
    struct slot slots[MAX_THREADS];
};

#endif
