/* Tables of a library of programs, which Python writes as words of 64 bits: see library.c.

   Rows refer to others by their index in words from the first word, to code and constants by their
   bytes from the beginning of the image. A node is the number of an expression. */
#ifndef SMELT_LIBRARY_H
#define SMELT_LIBRARY_H

#include "library_api.h"
#include "pool.h"

struct lib_tables {
    i64 programs;
    i64 program_count;
    i64 version; /* text */
    i64 futex; /* numbers of system calls */
    i64 getaffinity;
    i64 setaffinity;
    i64 spin; /* nanoseconds */
};

struct lib_program {
    i64 name; /* text */
    i64 text; /* arguments and results, as text */
    i64 recordings;
    i64 recording_count;
    i64 argument_count;
    i64 result_count;
    i64 caller_argument_count; /* of the caller, whose complex arrays are two of these */
    i64 caller_result_count;
    i64 argument_parts; /* a number each: whether it is a real part, which the other one follows */
    i64 result_parts;
    i64 parameter_count; /* most of a recording */
    i64 node_count; /* most of a recording */
};

struct lib_recording {
    i64 arguments;
    i64 nodes; /* rows */
    i64 match_end; /* nodes of parameters, guards, sizes and shapes of results */
    i64 accepted; /* node: whether the guards hold */
    i64 results;
    i64 plans;
    i64 plan_count;
};

struct lib_argument {
    i64 dtype;
    i64 itemsize;
    i64 rank;
    i64 dims; /* a number each, -1: any of at least 2 */
    i64 is_number; /* an integer whose value is a parameter */
};

struct lib_result {
    i64 kind;
    i64 source; /* argument, result, byte of a constant, or node */
    i64 dtype;
    i64 itemsize;
    i64 rank;
    i64 dims; /* a node each */
};

enum lib_result_kinds { LIB_COMPUTED, LIB_OF_ARGUMENT, LIB_OF_RESULT, LIB_OF_CONSTANT, LIB_OF_NODE };

/* It needs the nodes from the recording's `match_end` to `end`, some of which plans share. */
struct lib_plan {
    i64 features; /* of the processor, as text */
    i64 sizes; /* node and likely value of each */
    i64 size_count;
    i64 end;
    i64 body;
    i64 part_count; /* groups of all bodies */
    i64 place_count; /* addresses of all bodies */
    i64 flag; /* value: whether an index was out of bounds, or -1 */
};

/* Kernels on values, and steps that are repeated: of a plan, or of one such step. */
struct lib_body {
    i64 values;
    i64 groups;
    i64 group_count;
    i64 arena; /* node: bytes of values */
    i64 written; /* node: bytes of results; nothing runs for none */
    i64 places; /* index of its first address: of inputs, then of results */
    i64 input_count;
};

enum lib_places { LIB_IN_ARGUMENT, LIB_IN_CONSTANT, LIB_IN_RESULT, LIB_IN_ARENA, LIB_WITHIN, LIB_NOWHERE };

struct lib_value {
    i64 place;
    i64 number; /* input, byte of a constant, result, or value that it is within */
    i64 offset; /* node */
};

/* Kernels that do not depend on each other, and what runs after them. */
struct lib_group {
    i64 kernels;
    i64 kernel_count;
    i64 part; /* its number in the plan */
    i64 repeat; /* row, or 0 */
};

/* A body that runs for each step of a loop, or for each block of rows. */
struct lib_repeat {
    i64 body;
    i64 last_body; /* of the last step, which may be of fewer rows */
    i64 steps; /* node, or -1: while the first carry is true */
    i64 runs_once; /* whether it is false after a step */
    i64 is_reverse;
    i64 nbytes; /* node: memory besides that of a body; position, carries, results to copy */
    i64 inputs;
    i64 input_count;
    i64 results;
    i64 result_count;
    i64 carry_count; /* leading inputs and results */
};

/* An input of a step: a carry, which begins as a value, a slice of a value, or a position. */
struct lib_input {
    i64 value; /* of the body around, or -1: the position */
    i64 distance; /* node: bytes, or positions, between steps */
};

/* A result of a step: a carry, or a slice of a value. */
struct lib_step_result {
    i64 value; /* of the body around, or -1: none is wanted */
    i64 distance; /* node: bytes between steps */
    i64 history; /* value with a carry before all steps, or -1 */
    i64 source; /* value of the body */
    i64 own; /* node: byte of the memory of a carry, or where it is computed before a copy; or -1 */
    i64 nbytes; /* nodes: of a step, and of the last one */
    i64 last_nbytes;
    i64 runs; /* nodes: pieces of the slice, and bytes between them */
    i64 pitch;
    i64 identity; /* byte of a constant: the result of no steps, and its bytes or 0 */
    i64 itemsize;
};

struct lib_kernel {
    i64 chosen; /* node: number of the variant */
    i64 variants;
};

struct lib_variant {
    i64 words;
    i64 word_count;
    i64 partials; /* node of the bytes of each workspace */
    i64 partial_count;
    i64 functions;
    i64 function_count;
};

enum lib_words { LIB_ADDRESS, LIB_WORKSPACE, LIB_NUMBER };

struct lib_word {
    i64 kind;
    i64 of; /* value, workspace, or node */
};

struct lib_function {
    i64 code; /* byte of the image */
    i64 tasks; /* nodes */
    i64 scratch;
    i64 cycles;
};

struct lib_node {
    i64 op;
    i64 a;
    i64 b;
    i64 c;
};

/* Arithmetic as Python's, on integers or on floating point numbers. */
enum lib_ops {
    LIB_CONSTANT_OF,
    LIB_PARAMETER,
    LIB_ADD,
    LIB_SUB,
    LIB_MUL,
    LIB_DIV,
    LIB_MOD,
    LIB_GCD,
    LIB_EQ,
    LIB_LT,
    LIB_LE,
    LIB_SELECT,
    LIB_TO_FLOAT,
    LIB_FLOAT_ADD,
    LIB_FLOAT_SUB,
    LIB_FLOAT_MUL,
    LIB_FLOAT_DIV,
    LIB_FLOAT_LT,
    LIB_FLOAT_LE,
};

#endif
