/* Memory of recorded calls, which Python writes as arrays of words of 64 bits: see call.c. */
#ifndef SMELT_CALL_H
#define SMELT_CALL_H

#include "base.h"

/* ---- objects of CPython 3.11 to 3.14 with the GIL, and of NumPy 2: checked when loaded ------- */

typedef struct object object;
struct object {
    i32 references;
    i32 unused;
    object *type;
};

struct ndarray {
    object object;
    char *data;
    i32 rank;
    i64 *dims;
    i64 *strides;
    object *base;
    object *descr;
    i32 flags;
};

struct bytes {
    object object;
    i64 size;
    i64 hash;
    i64 content[]; /* a number of records, and their addresses */
};

struct scalar {
    object object;
    i64 value; /* short ones are followed by unused bytes */
};

enum array_flags { READABLE = 0x101, WRITEABLE = 0x400, CARRAY = 0x501 };

/* ---- the process's state --------------------------------------------------------------------- */

typedef object *new_array_function(object *type, object *descr, i32 rank, const i64 *dims,
                                   const i64 *strides, i64 data, i32 flags, object *owner);
typedef object *call_function(object *function, object **args, i64 count, object *names);

struct state {
    /* an attribute that must be 0; the Python function; types compared by identity */
    object *local;
    object *following;
    object *pending;
    object *sampled;
    object *members;
    object *zero;
    object *fallback;
    object *line;
    object *ndarray;
    object *array;
    object *value;
    object *foreign;
    object *watched;
    object *float_;
    object *int_;
    object *tuple;
    object *list;
    object *dict;
    object *string;
    object *settings;
    /* offsets of slots */
    i64 line_at;
    i64 printed_at;
    i64 node_at;
    i64 data_at;
    i64 op_at;
    i64 inputs_at;
    i64 type_at;
    i64 origin_at;
    i64 scope_at;
    i64 sample_at;
    /* fields that all results' values share */
    object *source;
    object *empty;
    object *none;
    object *data_ptr; /* a name */
    /* functions of CPython and NumPy */
    void (*incref)(object *x);
    void (*decref)(object *x);
    i32 (*context_get)(object *variable, object *fallback, object **value);
    object *(*get_attribute)(object *x, object *name);
    call_function *vectorcall;
    object *(*call)(object *function);
    object *(*call_one)(object *function, object *x);
    object *(*tuple_new)(i64 count);
    i32 (*tuple_set)(object *tuple, i64 k, object *x);
    i64 (*tuple_size)(object *tuple);
    object *(*tuple_get)(object *tuple, i64 k);
    i64 (*list_size)(object *list);
    object *(*list_get)(object *list, i64 k);
    i64 (*set_size)(object *set);
    i32 (*string_compare)(object *a, object *b);
    object *(*list_new)(i64 count);
    i32 (*list_set)(object *list, i64 k, object *x);
    object *(*dict_new)(void);
    i32 (*dict_set)(object *dict, object *key, object *x);
    i64 (*dict_size)(object *dict);
    i32 (*dict_next)(object *dict, i64 *position, object **key, object **x);
    i64 (*length)(object *sequence);
    object *(*item)(object *sequence, i64 k);
    call_function *method;
    new_array_function *new_array;
    i32 (*set_base)(object *array, object *base);
    object *(*alloc)(object *type, i64 count);
    double (*as_double)(object *x);
    i64 (*as_long)(object *x, i32 *overflow);
    object *(*from_long)(i64 x);
    void *(*malloc)(i64 nbytes);
    void (*free)(void *memory);
    object *(*no_memory)(void);
    void (*clear)(void);
    void *(*let_go)(void);
    void (*take_back)(void *thread);
};

/* ---- a record and its rows ------------------------------------------------------------------- */

enum argument_kinds { KIND_ARRAY, KIND_FLOAT, KIND_INT, KIND_SCALAR, KIND_SAME, KIND_OUT };
enum nest_kinds { NEST_TUPLE, NEST_LIST, NEST_DICT, NEST_NONE };
enum call_limits {
    RING_BLOCKS = 8,
    STACK_BYTES = 4096, /* most that a call takes from the stack; what needs more is allocated */
};

/* What an argument must be. */
struct argument {
    i64 kind;
    object *descr; /* or type of a scalar, or the object itself */
    i64 flags;
    i64 rank;
    i64 *dims;
    i64 *strides; /* null: contiguous */
    i64 item;
    i64 first; /* byte relative to the elements, and the one after the last */
    i64 end;
    i64 replaces; /* argument whose memory it is, -1: its own */
};

/* A captured array, and what it must still be. */
struct captured {
    object *value;
    struct ndarray *array;
    struct argument row;
};

/* A container of arguments. */
struct nest {
    i64 kind;
    i64 item;
    i64 count; /* items it holds */
    i64 first; /* of them */
    object **keys;
};

/* A container of results; items count the results, then the containers; -1 is None. */
struct result_nest {
    i64 kind;
    i64 count;
    i64 *items;
    object **keys;
};

/* Blocks of memory that are used in turn. */
struct ring_entry {
    object *block;
    i64 address;
};
struct ring {
    i64 next;
    struct ring_entry entries[RING_BLOCKS];
};

struct result {
    object *descr;
    i64 rank;
    i64 *dims;
    object *type;
    struct ring *ring; /* or null */
    object *allocate; /* returns an array on fresh memory */
    i64 *strides; /* null: contiguous */
};

/* The address of a place, with an offset in bytes, goes into a word of the frame. */
struct patch {
    i64 word;
    i64 place;
    i64 offset;
};
struct arena_patch {
    i64 word;
    i64 offset;
};

struct record {
    object *owner; /* the record object, which keeps all of this alive */
    i64 count; /* arguments: arrays and numbers, at any nesting */
    i64 positional; /* number of positional arguments, names of the rest, and their number */
    object **names;
    i64 name_count;
    const struct nest *nests;
    i64 nest_count;
    object *scope; /* the settings in force, and their text */
    object *printed;
    const struct argument *arguments;
    i64 out; /* one more than the item that is `out=`, or 0 */
    i64 out_count; /* number of its arrays, which are the last arguments */
    const struct captured *captured;
    i64 captured_count;
    const struct result *results;
    i64 result_count;
    const struct result_nest *result_nests; /* inner ones first */
    i64 result_nest_count;
    i64 room; /* bytes of a call's memory: arrays, numbers, addresses, frame */
    i64 frame_at; /* offset of the frame in it */
    const i64 *frame; /* the kernels' arguments; addresses are written into a copy */
    i64 frame_words;
    const struct patch *patches;
    i64 patch_count;
    const struct result *arena; /* memory between kernels, or null */
    const struct arena_patch *arena_patches;
    i64 arena_count;
    const struct chunk *chunks; /* to run inline */
    i64 chunk_count;
    i64 scratch;
    i64 unlocked; /* whether they run without the GIL; scratch is then an offset in the arena */
    object *runner; /* runner(address of the frame), if chunks do not run inline; or null */
    object *pack; /* pack(tuple of results); or null for the tuple itself */
    object *wrap; /* wrap(array) for each result; or null for Smelt's arrays */
    i64 single; /* whether the only result is returned as it is */
    object *refuse; /* refuse() raises if the hidden flag result is true; or null */
};

#endif
