/* Types and atomics of the native code. It includes no header of a C library: what it calls is
   passed to it by address, so that an object serves any process of its architecture. */
#ifndef SMELT_BASE_H
#define SMELT_BASE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef int8_t i8;
typedef int32_t i32;
typedef int64_t i64;
typedef uint32_t u32;
typedef uint64_t u64;

#define EXPORT __attribute__((visibility("default")))
#define NOINLINE __attribute__((noinline))

#define LOAD(at, order) atomic_load_explicit(at, memory_order_##order)
#define STORE(at, x, order) atomic_store_explicit(at, x, memory_order_##order)
#define ADD(at, x) atomic_fetch_add_explicit(at, x, memory_order_seq_cst)

/* One chunk of a launch: kernel(frame + args_at, begin, end, scratch). As in kernel/abi.py. */
struct chunk {
    void (*kernel)(char *args, i64 begin, i64 end, char *scratch);
    i64 args_at;
    i64 begin;
    i64 end;
};

static inline void run_chunk(const struct chunk *chunk, char *frame, char *scratch)
{
    chunk->kernel(frame + chunk->args_at, chunk->begin, chunk->end, scratch);
}

#endif
