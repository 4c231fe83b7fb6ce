/* A repeated call on a GPU: context, memory, arguments, launches, and memory freed.

   In Python this takes tens of microseconds, more than a small kernel on a device. It does nothing
   that Python does not do as well: where a call is not what was recorded, or the driver refuses
   memory, it undoes what it did and returns DECLINED, and Python makes the call, with its errors.
*/
#include "device.h"

/* Launch a table's kernels. Returns 0, or the number of the launch that failed (from 1) times 2**32
   plus the driver's status. The driver has copied the arguments when a launch returns, so there is
   one array of pointers for all. */
EXPORT i64 smelt_launch(const struct device_launch *rows, i64 count, i64 *frame, i64 **pointers,
                        void *stream, launch_function *call)
{
    for (i64 k = 0; k < count; k++) {
        const struct device_launch *row = &rows[k];
        i64 *first = &frame[row->first], arguments = row->arguments;
        for (i64 i = 0; i < arguments; i++)
            pointers[i] = &first[i];
        i32 status = call(row->function, (u32)row->x, (u32)row->y, (u32)row->z, (u32)row->threads,
                          1, 1, (u32)row->shared, stream, pointers, NULL);
        if (status)
            return (k + 1) << 32 | (u32)status;
    }
    return 0;
}

/* Make the call's context current; false if the driver refuses. */
static bool enter(const struct device_call *call, bool *pushed)
{
    void *current = NULL;
    call->cuCtxGetCurrent(&current);
    *pushed = current != call->context;
    return !*pushed || !call->cuCtxPushCurrent_v2(call->context);
}

static void leave(const struct device_call *call, bool pushed)
{
    void *context;
    if (pushed)
        call->cuCtxPopCurrent_v2(&context);
}

/* Allocate the blocks; false, with none, if the driver refuses one. */
static bool allocate(const struct device_call *call, i64 *addresses, void *stream)
{
    for (i64 k = 0; k < call->block_count; k++)
        if (call->cuMemAllocAsync(&addresses[k], call->blocks[k], stream)) {
            while (k-- > 0)
                call->cuMemFreeAsync(addresses[k], stream);
            return false;
        }
    return true;
}

/* A call in its context: see smelt_device_call. */
static i64 run(const struct device_call *call, i64 *addresses, void *stream, i64 *frame,
               bool launches)
{
    i32 capturing = 1;
    i64 *blocks = addresses + call->first_block;
    if (call->cuStreamIsCapturing(stream, &capturing) || capturing
        || !allocate(call, blocks, stream))
        return DECLINED;
    for (i64 k = 0; k < call->frame_words; k++)
        frame[k] = call->frame[k];
    for (i64 k = 0; k < call->patch_count; k++) {
        const struct device_patch *patch = &call->patches[k];
        frame[patch->word] = addresses[patch->address] + patch->offset;
    }
    if (!launches)
        return 0;
    i64 failed = smelt_launch(call->rows, call->launches, frame,
                              (i64 **)(frame + call->frame_words), stream, call->cuLaunchKernel);
    if (call->has_arena)
        call->cuMemFreeAsync(blocks[call->block_count - 1], stream);
    return failed;
}

/* Make a call, or, with room for a frame, fill that and launch nothing. The addresses are those of
   inputs, then of blocks. Returns DECLINED, or what smelt_launch does. */
EXPORT i64 smelt_device_call(const struct device_call *call, i64 *addresses, void *stream,
                             i64 *frame)
{
    bool pushed, launches = !frame;
    if (launches)
        frame = __builtin_alloca(8 * (call->frame_words + call->max_arguments));
    if (!enter(call, &pushed))
        return DECLINED;
    i64 result = run(call, addresses, stream, frame, launches);
    leave(call, pushed);
    return result;
}

/* Free memory in the call's context. */
EXPORT i32 smelt_device_free(const struct device_call *call, i64 address, void *stream)
{
    bool pushed;
    if (!enter(call, &pushed))
        return DECLINED;
    i32 status = call->cuMemFreeAsync(address, stream);
    leave(call, pushed);
    return status;
}

/* Replay a graph in the call's context. */
EXPORT i32 smelt_device_replay(const struct device_call *call, void *graph, void *stream)
{
    bool pushed;
    if (!enter(call, &pushed))
        return DECLINED;
    i32 status = call->cuGraphLaunch(graph, stream);
    leave(call, pushed);
    return status;
}
