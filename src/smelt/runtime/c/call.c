/* A recorded call: match arguments, allocate, run kernels, build results.

   In Python this takes several microseconds, more than a small kernel. It reads only simple parts
   of CPython's and NumPy's objects: the type of an object, the array fields that NumPy's C API
   makes public, slots of Smelt's own classes. Python checks every offset in the running process
   before it enables this code, and fills in the state.

   Safety rules. It runs with the GIL held, except for long-running kernels of one thread, which may
   release it. Every object that it uses is either owned by the record, which it references, or
   referenced by itself, before anything is called that might run Python code. It compares first
   and changes nothing until a record matches; a call that matches no record is left to the Python
   function. */
#include "call.h"

typedef const struct state *State;
typedef const struct record *Record;

static State the_state;

/* Set the address of the state that the process has filled in. */
EXPORT void smelt_bind(State state)
{
    the_state = state;
}

/* An object's slot, whose offset is in the state; null if it was never set. */
static object **slot(object *x, i64 offset)
{
    return (object **)((char *)x + offset);
}

/* Set a slot of a new object to a shared object. */
static void share(State state, object *x, i64 offset, object *shared)
{
    state->incref(shared);
    *slot(x, offset) = shared;
}

static bool same_words(const i64 *a, const i64 *b, i64 count)
{
    for (i64 k = 0; k < count; k++)
        if (a[k] != b[k])
            return false;
    return true;
}

/* ---- match ---------------------------------------------------------------------------------- */

/* Whether the memory of values of a class may be written by others. */
static bool is_shared(State state, object *class)
{
    return class == state->foreign || class == state->watched;
}

/* The NumPy array of an argument: itself, or the data of a Smelt array; null for other objects. */
static struct ndarray *elements(State state, object *x)
{
    if (x->type == state->ndarray)
        return (struct ndarray *)x;
    if (x->type != state->array)
        return NULL;
    object *node = *slot(x, state->node_at);
    if (!node || (node->type != state->value && !is_shared(state, node->type)))
        return NULL;
    object *data = *slot(node, state->data_at); /* null: pending */
    return data && data->type == state->ndarray ? (struct ndarray *)data : NULL;
}

/* Whether an array matches a row of a record. */
static bool fits(const struct argument *row, const struct ndarray *array)
{
    return array->descr == row->descr && array->rank == row->rank
        && (array->flags & READABLE) == row->flags
        && same_words(array->dims, row->dims, row->rank)
        && (!row->strides || same_words(array->strides, row->strides, row->rank));
}

/* Whether two keys or names are equal: the same object, or equal strings. */
static bool same_key(State state, object *a, object *b)
{
    return a == b
        || (a->type == state->string && b->type == state->string
            && state->string_compare(a, b) == 0);
}

/* Whether the call has the record's number of positional arguments and its keywords. */
static bool names_fit(State state, Record record, i64 given, object *keywords)
{
    if (record->positional != given)
        return false;
    if (!keywords)
        return record->name_count == 0;
    if (state->tuple_size(keywords) != record->name_count)
        return false;
    for (i64 k = 0; k < record->name_count; k++)
        if (!same_key(state, state->tuple_get(keywords, k), record->names[k]))
            return false;
    return true;
}

/* Store the items of a tuple or list; false if it has another length. */
static bool unfold_sequence(object *x, i64 count, object **items, i64 (*size)(object *),
                            object *(*get)(object *, i64))
{
    if (size(x) != count)
        return false;
    for (i64 k = 0; k < count; k++)
        if (!(items[k] = get(x, k)))
            return false;
    return true;
}

/* Store the values of a dict; false unless it has these keys in this order. */
static bool unfold_dict(State state, object *x, i64 count, object **items, object **keys)
{
    i64 position = 0;
    object *key;
    if (state->dict_size(x) != count)
        return false;
    for (i64 k = 0; k < count; k++)
        if (!state->dict_next(x, &position, &key, &items[k]) || !same_key(state, key, keys[k]))
            return false;
    return true;
}

/* Whether the containers match the record; stores their items after those of the call. */
static bool unfold(State state, Record record, object **items)
{
    for (i64 k = 0; k < record->nest_count; k++) {
        const struct nest *row = &record->nests[k];
        object *x = items[row->item], **to = items + row->first;
        bool same = false;
        if (row->kind == NEST_TUPLE)
            same = x->type == state->tuple
                && unfold_sequence(x, row->count, to, state->tuple_size, state->tuple_get);
        else if (row->kind == NEST_LIST)
            same = x->type == state->list
                && unfold_sequence(x, row->count, to, state->list_size, state->list_get);
        else if (row->kind == NEST_DICT)
            same = x->type == state->dict && unfold_dict(state, x, row->count, to, row->keys);
        else if (row->kind == NEST_NONE)
            same = x == state->none;
        if (!same)
            return false;
    }
    return true;
}

/* Whether an argument matches its row; stores its array, or null and its number. */
static bool argument_fits(State state, const struct argument *row, object *x,
                          struct ndarray **array, i64 *number)
{
    i32 overflow;
    *array = NULL;
    switch (row->kind) {
    case KIND_OUT: /* a Smelt array would get another value */
        if (x->type != state->ndarray)
            return false;
        /* fall through */
    case KIND_ARRAY:
        return (*array = elements(state, x)) && fits(row, *array);
    case KIND_FLOAT:
        if (x->type != state->float_)
            return false;
        *(double *)number = state->as_double(x);
        return true;
    case KIND_INT:
        if (x->type != state->int_)
            return false;
        *number = state->as_long(x, &overflow);
        return !overflow && *number != INT64_MIN;
    case KIND_SCALAR:
        if (x->type != row->descr)
            return false;
        *number = ((struct scalar *)x)->value;
        return true;
    case KIND_SAME: /* constant of the record, no kernel reads it */
        return x == row->descr;
    }
    return false;
}

/* Whether a captured array is still what it was. */
static bool captured_fits(State state, const struct captured *row)
{
    object *value = row->value;
    if (value->type != state->value) {
        /* shared memory is read directly, unless a computation is pending */
        if (!is_shared(state, value->type) || *slot(value, state->sample_at) != state->none)
            return false;
    }
    object *data = *slot(value, state->data_at);
    /* it may have been resized in place */
    return data == (object *)row->array && fits(&row->row, row->array);
}

/* Whether the record matches this call; stores arrays and numbers of the arguments. */
static bool matches(State state, Record record, object **args, i64 given, struct ndarray **arrays,
                    i64 *numbers)
{
    if (record->nest_count) {
        object **items = (object **)(numbers + record->count);
        for (i64 k = 0; k < given + record->name_count; k++)
            items[k] = args[k];
        if (!unfold(state, record, items))
            return false;
        args = items;
    }
    for (i64 k = 0; k < record->count; k++) {
        const struct argument *row = &record->arguments[k];
        if (!argument_fits(state, row, args[row->item], &arrays[k], &numbers[k]))
            return false;
    }
    for (i64 k = 0; k < record->captured_count; k++)
        if (!captured_fits(state, &record->captured[k]))
            return false;
    return true;
}

/* ---- arguments `out=` ----------------------------------------------------------------------- */

/* Whether bytes `first` to `end` are apart from an array, whose row says where its memory is. */
static bool is_apart(const struct ndarray *array, const struct argument *row, u64 first, u64 end)
{
    u64 base = (u64)array->data;
    return base + (u64)row->end <= first || end <= base + (u64)row->first;
}

/* Whether the arrays of `out=` may be written, and overlap each other and what is read as they did
   when the call was recorded. */
static bool outs_apart(Record record, struct ndarray **arrays)
{
    for (i64 o = record->count - record->out_count; o < record->count; o++) {
        const struct argument *row = &record->arguments[o];
        u64 first = (u64)arrays[o]->data, end = first + (u64)row->end;
        if (!(arrays[o]->flags & WRITEABLE))
            return false;
        for (i64 k = 0; k < o; k++) {
            if (!arrays[k]) /* a number */
                continue;
            if (k == row->replaces ? (u64)arrays[k]->data != first
                                   : !is_apart(arrays[k], &record->arguments[k], first, end))
                return false;
        }
        for (i64 k = 0; k < record->captured_count; k++)
            if (!is_apart(record->captured[k].array, &record->captured[k].row, first, end))
                return false;
    }
    return true;
}

/* Whether no operator of this thread waits to read memory; runs no Python code. */
static bool nothing_pending(State state)
{
    object *list = state->get_attribute(state->local, state->pending), *sampled, *set;
    i64 count;
    if (!list)
        goto no;
    count = state->list_size(list);
    state->decref(list);
    if (count || !(sampled = state->get_attribute(state->local, state->sampled)))
        goto no;
    set = state->get_attribute(sampled, state->members);
    state->decref(sampled);
    if (!set)
        goto no;
    count = state->set_size(set);
    state->decref(set);
    if (!count)
        return true;
no:
    state->clear();
    return false;
}

/* ---- memory --------------------------------------------------------------------------------- */

/* Return a block of memory and its address: a free one of the ring, or a fresh one. The caller
   owns a reference. Null with an exception set if there is no memory. */
static object *take_block(State state, const struct result *row, i64 *address)
{
    struct ring *ring = row->ring;
    for (i64 k = 0; ring && k < RING_BLOCKS && ring->entries[k].block; k++) {
        object *block = ring->entries[k].block;
        if (block->references == 1) {
            *address = ring->entries[k].address;
            state->incref(block);
            return block;
        }
    }
    /* the allocator returns an array on a new block */
    struct ndarray *array = (struct ndarray *)state->call(row->allocate);
    if (!array)
        return NULL;
    object *block = array->base;
    *address = (i64)array->data;
    state->incref(block);
    state->decref(&array->object);
    if (ring) { /* replace the oldest entry */
        struct ring_entry *entry = &ring->entries[ring->next];
        object *old = entry->block;
        ring->next = (ring->next + 1) % RING_BLOCKS;
        state->incref(block);
        entry->block = block;
        entry->address = *address;
        if (old)
            state->decref(old);
    }
    return block;
}

/* Return an uninitialised array and its address. Null with an exception set on failure. */
EXPORT object *smelt_array(const struct result *row, i64 *address)
{
    State state = the_state;
    object *block = take_block(state, row, address);
    if (!block)
        return NULL;
    state->incref(row->descr);
    object *array = state->new_array(state->ndarray, row->descr, (i32)row->rank, row->dims,
                                     row->strides, *address, CARRAY, NULL);
    if (!array) {
        state->decref(block);
        return NULL;
    }
    if (state->set_base(array, block) < 0) { /* takes the reference, even on failure */
        state->decref(array);
        return NULL;
    }
    return array;
}

/* Return an uninitialised Smelt array and its address. */
EXPORT object *smelt_result(const struct result *row, i64 *address)
{
    State state = the_state;
    object *array = smelt_array(row, address);
    if (!array)
        return NULL;
    object *value = state->alloc(state->value, 0);
    if (!value) {
        state->decref(array);
        return NULL;
    }
    *slot(value, state->data_at) = array;
    share(state, value, state->type_at, row->type);
    share(state, value, state->op_at, state->source);
    share(state, value, state->inputs_at, state->empty);
    share(state, value, state->origin_at, state->none);
    share(state, value, state->scope_at, state->none);
    object *result = state->alloc(state->array, 0);
    if (!result) {
        state->decref(value);
        return NULL;
    }
    *slot(result, state->node_at) = value;
    return result;
}

/* Return a Smelt array, or what the record's wrapper makes of a NumPy array. */
static object *make_result(State state, Record record, const struct result *row, i64 *address)
{
    if (!record->wrap)
        return smelt_result(row, address);
    object *array = smelt_array(row, address);
    if (!array)
        return NULL;
    object *wrapped = state->call_one(record->wrap, array);
    state->decref(array);
    return wrapped;
}

/* ---- run ------------------------------------------------------------------------------------ */

/* Have the pool run the kernels, which releases the GIL. False with an exception set. */
static bool run_elsewhere(State state, object *runner, i64 *frame)
{
    object *address = state->from_long((i64)frame);
    if (!address)
        return false;
    object *answer = state->call_one(runner, address);
    state->decref(address);
    if (!answer)
        return false;
    state->decref(answer);
    return true;
}

/* Copy the frame, write the addresses into it and run the kernels. False on failure. */
static bool perform(State state, Record record, const i64 *places, i64 *frame, i64 arena)
{
    for (i64 k = 0; k < record->frame_words; k++)
        frame[k] = record->frame[k];
    for (i64 k = 0; k < record->patch_count; k++) {
        const struct patch *patch = &record->patches[k];
        frame[patch->word] = places[patch->place] + patch->offset;
    }
    for (i64 k = 0; k < record->arena_count; k++)
        frame[record->arena_patches[k].word] = arena + record->arena_patches[k].offset;
    if (record->runner)
        return run_elsewhere(state, record->runner, frame);
    /* without the GIL no Python object is touched until it is retaken; the record is ours */
    const struct chunk *chunks = record->chunks;
    i64 count = record->chunk_count, scratch = record->scratch;
    void *thread = NULL;
    bool unlocked = record->unlocked;
    if (unlocked) {
        scratch += arena;
        thread = state->let_go();
    }
    for (i64 k = 0; k < count; k++)
        run_chunk(&chunks[k], (char *)frame, (char *)scratch);
    if (unlocked)
        state->take_back(thread);
    return true;
}

/* Return the nest of tuples, lists and dicts that holds the results. `objects` is a tuple of the
   results; the containers are stored after them, inner ones first, so that it owns them all. */
static object *build_nests(State state, Record record, object *objects)
{
    object *nest = NULL;
    for (i64 k = 0; k < record->result_nest_count; k++) {
        const struct result_nest *row = &record->result_nests[k];
        bool is_list = row->kind == NEST_LIST, is_dict = row->kind == NEST_DICT;
        nest = is_dict   ? state->dict_new()
             : is_list   ? state->list_new(row->count)
                         : state->tuple_new(row->count);
        if (!nest || state->tuple_set(objects, record->result_count + k, nest) < 0)
            return NULL;
        for (i64 i = 0; i < row->count; i++) {
            i64 item = row->items[i];
            object *x = item < 0 ? state->none : state->tuple_get(objects, item);
            i32 status;
            if (is_dict) {
                status = state->dict_set(nest, row->keys[i], x);
            } else { /* takes the reference, even on failure */
                state->incref(x);
                status = (is_list ? state->list_set : state->tuple_set)(nest, i, x);
            }
            if (status < 0)
                return NULL;
        }
    }
    state->incref(nest);
    return nest;
}

/* Store the addresses of what the kernels read. `told`: numbers are addresses. */
static void locate_inputs(Record record, struct ndarray **arrays, i64 *numbers, bool told,
                          i64 *places)
{
    for (i64 k = 0; k < record->count; k++)
        places[k] = arrays[k] ? (i64)arrays[k]->data : told ? numbers[k] : (i64)&numbers[k];
    for (i64 k = 0; k < record->captured_count; k++)
        places[record->count + k] = (i64)record->captured[k].array->data;
}

/* Return the results of a call: a new reference, or null with an exception set. The room holds the
   arguments' arrays, then numbers: for an argument without an array the number itself, or, with
   `told`, its address. All addresses and the kernels' frame follow. `given` is what `out=` names,
   which is the result, or null. */
static object *answer(State state, Record record, char *room, bool told, object *given)
{
    struct ndarray **arrays = (struct ndarray **)room;
    i64 *numbers = (i64 *)(arrays + record->count), *places = numbers + record->count;
    i64 *outputs = places + record->count + record->captured_count, arena = 0;
    _Alignas(64) i8 flag[64];
    object *out = given, *block = NULL;
    flag[0] = 0;
    outputs[record->result_count] = (i64)flag;
    if (given) {
        state->incref(given);
    } else if (!record->single) {
        out = state->tuple_new(record->result_count + record->result_nest_count);
        if (!out)
            return NULL;
    }
    for (i64 k = 0; k < record->result_count; k++) {
        object *made = make_result(state, record, &record->results[k], &outputs[k]);
        if (!made)
            goto fail;
        if (record->single)
            out = made;
        else if (state->tuple_set(out, k, made) < 0)
            goto fail;
    }
    if (record->arena && !(block = take_block(state, record->arena, &arena)))
        goto fail;
    /* no Python code may run from here to the kernels */
    locate_inputs(record, arrays, numbers, told, places);
    bool well = perform(state, record, places, (i64 *)(room + record->frame_at), arena);
    if (block)
        state->decref(block);
    if (!well)
        goto fail;
    if (flag[0]) {
        state->call(record->refuse);
        goto fail;
    }
    object *whole = out;
    if (record->result_nest_count)
        whole = build_nests(state, record, out);
    else if (record->pack)
        whole = state->call_one(record->pack, out);
    else
        return out;
    state->decref(out);
    return whole;
fail:
    if (out)
        state->decref(out);
    return NULL;
}

/* ---- entries -------------------------------------------------------------------------------- */

/* The memory of one call, aligned: on the stack of the function that says this if it is small, else
   from the heap, whose address goes to `heap`. Null if there is none. */
#define TAKE_ROOM(nbytes, heap)                                                                    \
    ((nbytes) <= STACK_BYTES ? (char *)__builtin_alloca_with_align(nbytes, 8 * 64)                 \
                             : allocate_room(state, nbytes, heap))

static char *allocate_room(State state, i64 nbytes, void **heap)
{
    *heap = state->malloc(nbytes + 64);
    return *heap ? (char *)(((u64)*heap + 63) & -(u64)64) : NULL;
}

/* Run the call if the record matches its arguments; stores the result, null with an exception set.
   Its memory has room for any number of arguments and is gone before a call is left to Python. */
static NOINLINE bool attempt(State state, Record record, object **args, i64 given, object **result)
{
    void *heap = NULL;
    char *room = TAKE_ROOM(record->room, &heap);
    *result = NULL;
    if (!room) {
        state->no_memory();
        return true;
    }
    struct ndarray **arrays = (struct ndarray **)room;
    i64 count = record->count;
    bool found = matches(state, record, args, given, arrays, (i64 *)(arrays + count))
              && (!record->out || (outs_apart(record, arrays) && nothing_pending(state)));
    if (found) {
        object *owner = record->owner;
        state->incref(owner); /* before anything may run Python code */
        for (i64 k = 0; k < count; k++)
            if (arrays[k])
                state->incref(&arrays[k]->object);
        object *out = record->out ? args[record->out - 1] : NULL;
        *result = answer(state, record, room, false, out);
        for (i64 k = 0; k < count; k++)
            if (arrays[k])
                state->decref(&arrays[k]->object);
        state->decref(owner);
    }
    if (heap)
        state->free(heap);
    return found;
}

/* Call the Python function, with `self` before the arguments. */
static NOINLINE object *in_python(State state, object *self, object **args, i64 given,
                                  object *keywords)
{
    i64 count = given + (keywords ? state->tuple_size(keywords) : 0);
    object **all = state->malloc(8 * (count + 1));
    if (!all)
        return state->no_memory();
    all[0] = self;
    for (i64 k = 0; k < count; k++)
        all[k + 1] = args[k];
    object *result = state->vectorcall(state->fallback, all, given + 1, keywords);
    state->free(all);
    return result;
}

/* A call from CPython (METH_FASTCALL | METH_KEYWORDS). */
EXPORT object *smelt_call(object *self, object **args, i64 given, object *keywords)
{
    State state = the_state;
    object *scope, *result;
    object *following = state->get_attribute(state->local, state->following);
    if (!following)
        return NULL;
    state->decref(following);
    struct bytes *line = (struct bytes *)*slot(self, state->line_at);
    if (following != state->zero || !line || line->object.type != state->line)
        return in_python(state, self, args, given, keywords);
    if (state->context_get(state->settings, NULL, &scope) < 0)
        return NULL;
    object *printed = *slot(scope, state->printed_at);
    state->decref(scope); /* the context also references the settings */
    i64 count = line->content[0];
    for (i64 k = 1; k <= count; k++) {
        Record record = (Record)line->content[k];
        if (names_fit(state, record, given, keywords) && record->scope == scope
            && record->printed == printed && attempt(state, record, args, given, &result))
            return result;
    }
    return in_python(state, self, args, given, keywords);
}

/* Store the address that an input of smelt_at is, or tells; takes its reference. */
static bool read_address(State state, object *x, i64 *address)
{
    i32 overflow;
    if (x->type == state->ndarray) { /* the caller references it */
        *address = (i64)((struct ndarray *)x)->data;
        state->decref(x);
        return true;
    }
    if (x->type != state->int_) {
        object *told = state->method(state->data_ptr, &x, 1, NULL);
        state->decref(x);
        if (!told)
            return false;
        x = told;
    }
    bool is_int = x->type == state->int_;
    if (is_int)
        *address = state->as_long(x, &overflow);
    state->decref(x);
    return is_int;
}

/* at(address of a record, inputs): a call whose inputs are addresses, arrays, or objects with a
   method `data_ptr`. */
EXPORT object *smelt_at(object *self, object **args, i64 given)
{
    (void)self, (void)given;
    State state = the_state;
    i32 overflow;
    void *heap = NULL;
    Record record = (Record)state->as_long(args[0], &overflow);
    i64 count = record->count;
    if (state->length(args[1]) != count)
        return NULL;
    char *room = TAKE_ROOM(record->room, &heap);
    if (!room)
        return state->no_memory();
    struct ndarray **arrays = (struct ndarray **)room;
    i64 *numbers = (i64 *)(arrays + count);
    object *result = NULL;
    bool told = true;
    for (i64 k = 0; k < count && told; k++) {
        object *x = state->item(args[1], k);
        arrays[k] = NULL;
        told = x && read_address(state, x, &numbers[k]);
    }
    if (told) {
        object *owner = record->owner;
        state->incref(owner);
        result = answer(state, record, room, true, NULL);
        state->decref(owner);
    }
    if (heap)
        state->free(heap);
    return result;
}
