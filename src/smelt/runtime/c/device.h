/* Memory of a repeated call on a GPU, which Python writes as words of 64 bits: see device.c. */
#ifndef SMELT_DEVICE_H
#define SMELT_DEVICE_H

#include "base.h"

typedef i32 launch_function(void *function, u32 x, u32 y, u32 z, u32 threads, u32 threads_y,
                            u32 threads_z, u32 shared, void *stream, i64 **arguments, void **extra);

/* A launch of a table. The driver reads its arguments through an array of pointers. */
struct device_launch {
    void *function;
    i64 x; /* of the grid */
    i64 y;
    i64 z;
    i64 threads;
    i64 shared; /* bytes of shared memory */
    i64 first; /* argument, a word of the frame */
    i64 arguments;
};

/* The address with a number, with an offset in bytes, goes into a word of the frame. */
struct device_patch {
    i64 word;
    i64 address;
    i64 offset;
};

enum device_status { DECLINED = -1 }; /* a call that Python has to make */

struct device_call {
    /* functions of the driver, by the names that it exports */
    i32 (*cuCtxGetCurrent)(void **context);
    i32 (*cuCtxPushCurrent_v2)(void *context);
    i32 (*cuCtxPopCurrent_v2)(void **context);
    i32 (*cuStreamIsCapturing)(void *stream, i32 *state);
    i32 (*cuMemAllocAsync)(i64 *address, i64 nbytes, void *stream);
    i32 (*cuMemFreeAsync)(i64 address, void *stream);
    launch_function *cuLaunchKernel;
    i32 (*cuGraphLaunch)(void *graph, void *stream);

    void *context;
    const struct device_launch *rows;
    i64 launches;
    const i64 *frame;
    i64 frame_words;
    i64 max_arguments;
    const struct device_patch *patches;
    i64 patch_count;
    const i64 *blocks; /* bytes of each block to allocate */
    i64 block_count;
    i64 first_block; /* number of the first block's address; an arena is the last block */
    i64 has_arena;
};

#endif
