#ifndef SMELT_LIBRARY_API_H
#define SMELT_LIBRARY_API_H

#include <stddef.h>
#include <stdint.h>

enum smelt_limits {
    SMELT_MAX_RANK = 8,
    SMELT_TEXT_BYTES = 508,
};

/* Types of elements. Complex numbers are pairs: a real part, and the imaginary one behind it. */
enum smelt_dtype {
    SMELT_BOOL,
    SMELT_I8,
    SMELT_I16,
    SMELT_I32,
    SMELT_I64,
    SMELT_U8,
    SMELT_U16,
    SMELT_U32,
    SMELT_U64,
    SMELT_F16,
    SMELT_BF16,
    SMELT_F32,
    SMELT_F64,
    SMELT_C64,
    SMELT_C128,
};

/* What functions return. */
enum smelt_code {
    SMELT_OK,
    SMELT_ERROR_ARGUMENT, /* a null pointer, a wrong count, overlapping memory */
    SMELT_ERROR_TYPE, /* another type of elements or rank than the program's */
    SMELT_ERROR_SIZE, /* sizes for which the program was not saved */
    SMELT_ERROR_BOUNDS, /* an index of an element that does not exist */
    SMELT_ERROR_MEMORY,
    SMELT_ERROR_MACHINE, /* the library has no code for this processor */
    SMELT_ERROR_NAME, /* the library has no program of this name */
};

/* An array in row-major order; a number is an array of rank 0. */
struct smelt_tensor {
    void *data;
    int32_t dtype;
    int32_t rank;
    int64_t shape[SMELT_MAX_RANK];
};

struct smelt_error {
    int32_t code;
    char text[SMELT_TEXT_BYTES];
};

struct smelt_options {
    size_t size; /* of this struct */
    int64_t threads; /* of a call, its own included; 0: the processors that it may use */
    void *(*alloc)(size_t nbytes, size_t alignment, void *user); /* both or neither are null */
    void (*release)(void *memory, void *user);
    void *user;
};

typedef struct smelt_tensor smelt_tensor;
typedef struct smelt_error smelt_error;
typedef struct smelt_options smelt_options;
typedef struct smelt_program smelt_program;

#endif
