/* Programs without Python: a shared library of them calls these functions.

   The tables beside this code say what Python knows of a program: what arguments have to be, how
   sizes follow from dimensions, which kernels run and where their values are. All that depends on
   sizes is an expression, a node; the nodes of a call are computed in order. Then this code does
   what `runtime/launch_table.py` does in Python: it takes a variant of each kernel, splits its
   tasks into chunks and runs them on the thread pool (pool.c).

   Everything of a call is in one workspace, which the program keeps for the next call: one of the
   same sizes only writes addresses. Calls at the same time have workspaces of their own.

   A plan is a body: groups of kernels, some of which are followed by steps that are repeated, each
   of them a body with memory behind that of the body around it. Chunks and launches of all bodies
   are made before the call; a step writes its addresses and runs them. */
#include "library.h"

extern const i64 smelt_tables[] __attribute__((visibility("hidden")));
extern const char smelt_image[] __attribute__((visibility("hidden")));

/* ---- the C library, and the other object of this one ------------------------------------------ */

i32 posix_memalign(void **memory, u64 alignment, u64 nbytes);
void free(void *memory);
void *memcpy(void *to, const void *from, u64 nbytes);
i32 open(const char *path, i32 flags, ...);
i64 read(i32 file, void *to, u64 nbytes);
i32 close(i32 file);
i32 getpid(void);
i64 syscall(i64 number, ...);
i32 clock_gettime(i32 clock, i64 *time);
i32 sched_yield(void);
i32 sched_getcpu(void);
i32 sigfillset(char *set);
i32 pthread_sigmask(i32 how, const char *set, char *old);
i32 pthread_attr_init(char *attr);
i32 pthread_attr_setstacksize(char *attr, i64 nbytes);
i32 pthread_attr_setdetachstate(char *attr, i32 state);
i32 pthread_create(i64 *thread, char *attr, void *(*start)(struct slot *), struct slot *slot);
i32 pthread_join(i64 thread, void **result);

#pragma GCC visibility push(hidden)
i32 smelt_run(struct pool *pool, const struct chunk *chunks, const struct launch *launches,
              i64 count, char *frame, i64 scratch_bytes, i64 threads, i64 token);
i32 smelt_drive(struct pool *pool, struct run *run, const struct chunk *chunks,
                const struct launch *launches, i64 count, char *frame);
void smelt_wake(struct pool *pool);
void *smelt_helper(struct slot *slot);

/* Nothing interrupts a call, so kernels find no function to poll. */
i64 smelt_poll_words[3];
#pragma GCC visibility pop

/* ---- tables ---------------------------------------------------------------------------------- */

#define ROWS(type, at) ((const struct type *)(smelt_tables + (at)))
#define TABLES ROWS(lib_tables, 0)

static const char *text_at(i64 at)
{
    return (const char *)(smelt_tables + at);
}

/* ---- errors ---------------------------------------------------------------------------------- */

/* Append text, as far as there is room. */
static NOINLINE void say(smelt_error *error, const char *text)
{
    i64 end = 0;
    if (!error)
        return;
    while (error->text[end])
        end++;
    while (*text && end < SMELT_TEXT_BYTES - 1)
        error->text[end++] = *text++;
    error->text[end] = 0;
}

static NOINLINE void say_number(smelt_error *error, i64 n)
{
    char digits[24];
    i32 at = 23;
    u64 rest = n < 0 ? -(u64)n : (u64)n;
    digits[at] = 0;
    do
        digits[--at] = (char)('0' + rest % 10);
    while (rest /= 10);
    if (n < 0)
        digits[--at] = '-';
    say(error, digits + at);
}

/* Begin an error. */
static NOINLINE i32 fail(smelt_error *error, i32 code, const char *text)
{
    if (error) {
        error->code = code;
        error->text[0] = 0;
    }
    say(error, text);
    return code;
}

static NOINLINE i32 well(smelt_error *error)
{
    return fail(error, SMELT_OK, "");
}

/* Names of element types, of four bytes each. */
static const char DTYPE_NAMES[] = "bool\0\0i8\0\0\0\0i16\0\0\0i32\0\0\0i64\0\0\0u8\0\0\0\0u16\0\0\0"
                                  "u32\0\0\0u64\0\0\0f16\0\0\0bf16\0\0f32\0\0\0f64\0\0\0"
                                  "c64\0\0\0c128\0";
enum { NAME_BYTES = 6 };

static NOINLINE void say_type(smelt_error *error, const smelt_tensor *x)
{
    bool known = x->dtype >= SMELT_BOOL && x->dtype <= SMELT_C128;
    say(error, known ? DTYPE_NAMES + NAME_BYTES * x->dtype : "an unknown type");
    say(error, "[");
    if (x->rank < 0 || x->rank > SMELT_MAX_RANK) {
        say(error, "rank ");
        say_number(error, x->rank);
    }
    for (i32 d = 0; d < x->rank && x->rank <= SMELT_MAX_RANK; d++) {
        say(error, d ? "," : "");
        say_number(error, x->shape[d]);
    }
    say(error, "]");
}

static NOINLINE i32 no_memory(smelt_error *error, i64 nbytes)
{
    fail(error, SMELT_ERROR_MEMORY, "no memory for ");
    say_number(error, nbytes);
    say(error, " bytes");
    return SMELT_ERROR_MEMORY;
}

/* ---- the processor --------------------------------------------------------------------------- */

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == 0;
}

/* Whether a text has this word of some length. */
static NOINLINE bool has_word(const char *text, const char *word, i64 length)
{
    for (const char *at = text; *at; at++) {
        i64 k = 0;
        if (at != text && !is_space(at[-1]))
            continue;
        while (k < length && at[k] == word[k])
            k++;
        if (k == length && is_space(at[k]))
            return true;
    }
    return false;
}

/* Whether the processor has all features: words, each of them with alternatives after a `|`. */
static bool has_features(const char *flags, const char *features)
{
    for (const char *at = features; *at;) {
        bool found = false;
        for (bool more = true; more;) {
            i64 length = 0;
            while (!is_space(at[length]) && at[length] != '|')
                length++;
            found = found || has_word(flags, at, length);
            more = at[length] == '|';
            at += length + (at[length] != 0);
        }
        if (!found)
            return false;
    }
    return true;
}

/* Read the beginning of a file as text. */
static NOINLINE void read_text(const char *path, char *text, i64 room)
{
    i32 file = open(path, 0);
    i64 length = 0, more = 1;
    while (file >= 0 && length < room - 1 && more > 0) {
        more = read(file, text + length, (u64)(room - 1 - length));
        length += more > 0 ? more : 0;
    }
    if (file >= 0)
        close(file);
    text[length] = 0;
}

/* The processors that this process may use, by affinity and by the quota of its container. */
static NOINLINE i64 usable_processors(void)
{
    u64 mask[16];
    char quota[64];
    i64 count = 0, numbers[2] = {0, 0};
    for (i32 k = 0; k < 16; k++)
        mask[k] = 0;
    syscall(TABLES->getaffinity, (i64)0, (i64)sizeof mask, mask);
    for (i32 k = 0; k < 16; k++)
        for (u64 rest = mask[k]; rest; rest &= rest - 1)
            count++;
    read_text("/sys/fs/cgroup/cpu.max", quota, sizeof quota);
    for (i32 k = 0, n = 0; quota[k] && n < 2; k++) {
        if (is_space(quota[k]))
            n++;
        else if (quota[k] >= '0' && quota[k] <= '9')
            numbers[n] = numbers[n] * 10 + (quota[k] - '0');
    }
    if (numbers[0] > 0 && numbers[1] > 0) {
        i64 most = (numbers[0] + numbers[1] - 1) / numbers[1];
        count = count < most ? count : most;
    }
    return count < 1 ? 1 : count > MAX_THREADS ? MAX_THREADS : count;
}

/* ---- the thread pool ------------------------------------------------------------------------- */

static struct pool the_pool;
static _Atomic i32 the_lock;
static _Atomic i64 the_tokens;
static i64 the_programs; /* open ones */
static i32 the_process;
static i64 the_threads[MAX_THREADS];
static void *the_scratch[MAX_THREADS];

static NOINLINE void lock(void)
{
    while (atomic_exchange_explicit(&the_lock, 1, memory_order_acquire))
        sched_yield();
}

static void unlock(void)
{
    STORE(&the_lock, 0, release);
}

static i32 create_thread(i64 *thread, char *attr, void *(*start)(struct slot *), struct slot *slot)
{
    i32 status = pthread_create(thread, attr, start, slot);
    if (!status)
        the_threads[slot->id] = *thread;
    return status;
}

static i32 get_affinity(i32 thread, i64 nbytes, u64 *mask)
{
    return (i32)syscall(TABLES->getaffinity, (i64)thread, nbytes, mask);
}

static i32 set_affinity(i32 thread, i64 nbytes, const u64 *mask)
{
    return (i32)syscall(TABLES->setaffinity, (i64)thread, nbytes, mask);
}

static void *no_value(i64 key)
{
    (void)key;
    return NULL;
}

static i32 keep_no_value(i64 key, void *value)
{
    (void)key, (void)value;
    return 0;
}

static NOINLINE void start_pool(void)
{
    struct pool *pool = &the_pool;
    the_process = getpid();
    pool->run.pool = pool;
    pool->helper = smelt_helper;
    pool->spin = TABLES->spin;
    pool->max_chunks = 0xffff;
    pool->futex = TABLES->futex;
    pool->monotonic = 1;
    pool->sig_setmask = 2;
    pool->detached = 0; /* threads are joined before the code is unmapped */
    pool->clock_gettime = clock_gettime;
    pool->syscall = syscall;
    pool->sched_yield = sched_yield;
    pool->attr_init = pthread_attr_init;
    pool->attr_stack = pthread_attr_setstacksize;
    pool->attr_detach = pthread_attr_setdetachstate;
    pool->create = create_thread;
    pool->sigfillset = sigfillset;
    pool->sigmask = pthread_sigmask;
    pool->getcpu = sched_getcpu;
    pool->getaffinity = get_affinity;
    pool->setaffinity = set_affinity;
    pool->getspecific = no_value;
    pool->setspecific = keep_no_value;
}

/* Join all helpers and free what they used. */
static NOINLINE void stop_pool(void)
{
    struct pool *pool = &the_pool;
    bool mine = the_process == getpid(); /* a fork has no threads but its own */
    i32 started = LOAD(&pool->started, relaxed);
    STORE(&pool->active, 1, seq_cst);
    STORE(&pool->started, 0, seq_cst);
    if (mine && started)
        smelt_wake(pool);
    for (i32 id = 0; id < MAX_THREADS; id++) {
        if (the_threads[id] && mine)
            pthread_join(the_threads[id], NULL);
        the_threads[id] = 0;
        STORE(&pool->slots[id].state, 0, seq_cst);
        free(the_scratch[id]);
        the_scratch[id] = NULL;
    }
    pool->scratch = 0;
}

/* Give every thread scratch; the caller owns the pool. */
static NOINLINE bool set_up_pool(struct pool *pool, i64 scratch_bytes)
{
    i64 active = LOAD(&pool->active, relaxed);
    i64 threads = pool->run.threads > active ? pool->run.threads : active;
    i64 nbytes = scratch_bytes > pool->scratch ? scratch_bytes : pool->scratch;
    if (nbytes < 1 << 16)
        nbytes = 1 << 16;
    for (i64 id = 0; id < threads; id++) {
        if (the_scratch[id] && nbytes == pool->scratch)
            continue;
        void *memory;
        if (posix_memalign(&memory, 64, (u64)nbytes)) {
            pool->scratch = 0; /* the next call sets all of them up */
            return false;
        }
        free(the_scratch[id]);
        the_scratch[id] = memory;
        pool->slots[id].scratch = memory;
    }
    pool->scratch = nbytes;
    pool->run.scratch = the_scratch[0];
    if (active != threads) {
        STORE(&pool->active, (i32)threads, seq_cst);
        STORE(&pool->started, 0, seq_cst);
    }
    return true;
}

/* ---- programs and workspaces ----------------------------------------------------------------- */

/* What one call uses. */
struct workspace {
    const struct lib_recording *recording;
    const struct lib_plan *plan;
    i64 *parameters; /* dimensions, then numbers */
    i64 *nodes;
    char *room;
    i64 room_bytes;
    i64 *frame;
    struct chunk *chunks;
    struct launch *launches;
    struct part *parts;
    char **places;
    char *arena;
    char *scratch;
    i64 frame_words;
    i64 chunk_count;
    i64 launch_count;
    i64 scratch_bytes;
};

/* What a group of kernels has of the tables. */
struct part {
    i64 word;
    i64 launch;
    i64 launch_count;
};

struct smelt_program {
    const struct lib_program *row;
    const char *features;
    i64 threads;
    void *(*alloc)(size_t nbytes, size_t alignment, void *user);
    void (*release)(void *memory, void *user);
    void *user;
    struct workspace *_Atomic spare;
};

static void *allocate(size_t nbytes, size_t alignment, void *user)
{
    void *memory;
    (void)user;
    return posix_memalign(&memory, alignment, nbytes) ? NULL : memory;
}

static void release(void *memory, void *user)
{
    (void)user;
    free(memory);
}

static NOINLINE struct workspace *take_workspace(smelt_program *program)
{
    struct workspace *w = atomic_exchange(&program->spare, NULL);
    if (w)
        return w;
    i64 words = program->row->parameter_count + program->row->node_count;
    w = program->alloc(sizeof *w + 8 * (u64)words, 64, program->user);
    if (!w)
        return NULL;
    w->recording = NULL;
    w->plan = NULL;
    w->parameters = (i64 *)(w + 1);
    w->nodes = w->parameters + program->row->parameter_count;
    w->room = NULL;
    w->room_bytes = 0;
    for (i64 k = 0; k < program->row->parameter_count; k++)
        w->parameters[k] = 0;
    return w;
}

static NOINLINE void free_workspace(smelt_program *program, struct workspace *w)
{
    if (!w)
        return;
    if (w->room)
        program->release(w->room, program->user);
    program->release(w, program->user);
}

static void keep_workspace(smelt_program *program, struct workspace *w)
{
    free_workspace(program, atomic_exchange(&program->spare, w));
}

/* ---- nodes ----------------------------------------------------------------------------------- */

static double as_double(i64 bits)
{
    double x;
    __builtin_memcpy(&x, &bits, 8);
    return x;
}

static i64 as_bits(double x)
{
    i64 bits;
    __builtin_memcpy(&bits, &x, 8);
    return bits;
}

/* Quotient rounded down; 0 for a divisor of 0, which no node that is used has. */
static i64 floor_div(i64 a, i64 b)
{
    if (b == 0 || (b == -1 && a == INT64_MIN))
        return 0;
    return a / b - (a % b != 0 && (a % b < 0) != (b < 0));
}

static i64 gcd(i64 a, i64 b)
{
    while (b) {
        i64 rest = a % b;
        a = b;
        b = rest;
    }
    return a < 0 ? -a : a;
}

/* Compute nodes from the values of earlier ones. */
static NOINLINE void compute(const struct lib_node *rows, i64 first, i64 end, const i64 *parameters, i64 *x)
{
    for (i64 k = first; k < end; k++) {
        const struct lib_node *row = &rows[k];
        i64 a = row->a, b = row->b, value = 0;
        switch (row->op) {
        case LIB_CONSTANT_OF: value = a; break;
        case LIB_PARAMETER: value = parameters[a]; break;
        case LIB_ADD: value = x[a] + x[b]; break;
        case LIB_SUB: value = x[a] - x[b]; break;
        case LIB_MUL: value = x[a] * x[b]; break;
        case LIB_DIV: value = floor_div(x[a], x[b]); break;
        case LIB_MOD: value = x[a] - floor_div(x[a], x[b]) * x[b]; break;
        case LIB_GCD: value = gcd(x[a], x[b]); break;
        case LIB_EQ: value = x[a] == x[b]; break;
        case LIB_LT: value = x[a] < x[b]; break;
        case LIB_LE: value = x[a] <= x[b]; break;
        case LIB_SELECT: value = x[a] ? x[b] : x[row->c]; break;
        case LIB_TO_FLOAT: value = as_bits((double)x[a]); break;
        case LIB_FLOAT_ADD: value = as_bits(as_double(x[a]) + as_double(x[b])); break;
        case LIB_FLOAT_SUB: value = as_bits(as_double(x[a]) - as_double(x[b])); break;
        case LIB_FLOAT_MUL: value = as_bits(as_double(x[a]) * as_double(x[b])); break;
        case LIB_FLOAT_DIV: value = as_bits(as_double(x[a]) / as_double(x[b])); break;
        case LIB_FLOAT_LT: value = as_double(x[a]) < as_double(x[b]); break;
        case LIB_FLOAT_LE: value = as_double(x[a]) <= as_double(x[b]); break;
        }
        x[k] = value;
    }
}

/* ---- arguments and results ------------------------------------------------------------------- */

/* Bytes of an array, -1 for one that no memory could hold. */
static NOINLINE i64 bytes_of(const i64 *shape, i64 rank, i64 itemsize)
{
    i64 nbytes = itemsize;
    for (i64 d = 0; d < rank; d++)
        if (shape[d] < 0 || __builtin_mul_overflow(nbytes, shape[d], &nbytes))
            return -1;
    return nbytes >> 62 ? -1 : nbytes;
}

static bool fits(const struct lib_argument *row, const smelt_tensor *x)
{
    const i64 *dims = smelt_tables + row->dims;
    if (x->dtype != row->dtype || x->rank != row->rank)
        return false;
    for (i64 d = 0; d < row->rank; d++)
        if (dims[d] < 0 ? x->shape[d] < 2 : x->shape[d] != dims[d])
            return false;
    return true;
}

/* Write the parameters of a recording if the arguments fit; true if they are other ones. */
static NOINLINE bool read_parameters(const struct lib_recording *r, i64 count, const smelt_tensor *inputs,
                            i64 *to, bool *fit)
{
    const struct lib_argument *rows = ROWS(lib_argument, r->arguments);
    bool changed = false;
    i64 n = 0;
    *fit = false;
    for (i64 k = 0; k < count; k++)
        if (!fits(&rows[k], &inputs[k]))
            return true;
    for (i64 k = 0; k < count; k++)
        for (i64 d = 0; d < rows[k].rank; d++, n++) {
            changed = changed || to[n] != inputs[k].shape[d];
            to[n] = inputs[k].shape[d];
        }
    for (i64 k = 0; k < count; k++)
        if (rows[k].is_number) {
            i64 x = *(const i64 *)inputs[k].data;
            changed = changed || to[n] != x;
            to[n++] = x;
        }
    *fit = true;
    return changed;
}

/* Say what arguments should be, and what they are. */
static NOINLINE i32 say_call(const smelt_program *program, i32 code, const smelt_tensor *inputs,
                             i64 count, smelt_error *error)
{
    fail(error, code, text_at(program->row->text));
    say(error, " was called with ");
    for (i64 k = 0; k < count; k++) {
        say(error, k ? ", " : "");
        say_type(error, &inputs[k]);
    }
    return code;
}

/* Say which argument is of another type, or that all sizes together are refused. */
static NOINLINE i32 refuse(const smelt_program *program, const smelt_tensor *inputs, smelt_error *error)
{
    const struct lib_program *row = program->row;
    const struct lib_recording *r = ROWS(lib_recording, row->recordings);
    const struct lib_argument *rows = ROWS(lib_argument, r->arguments);
    i64 count = row->argument_count;
    i32 code = SMELT_ERROR_SIZE;
    for (i64 k = 0; k < count; k++)
        if (inputs[k].dtype != rows[k].dtype || inputs[k].rank != rows[k].rank)
            code = SMELT_ERROR_TYPE;
    return say_call(program, code, inputs, count, error);
}

/* Whether a pointer to elements may be used. */
static NOINLINE i32 check_data(const smelt_tensor *x, i64 itemsize, const char *what, i64 k,
                      smelt_error *error)
{
    i64 nbytes = bytes_of(x->shape, x->rank, itemsize);
    const char *wrong = nbytes < 0                             ? " is too large"
                      : nbytes && !x->data                     ? " has no data: a null pointer"
                      : (u64)x->data & (u64)(itemsize - 1)     ? " is not aligned to its elements"
                                                               : NULL;
    if (!wrong)
        return SMELT_OK;
    fail(error, SMELT_ERROR_ARGUMENT, what);
    say_number(error, k);
    say(error, wrong);
    return SMELT_ERROR_ARGUMENT;
}

static bool overlap(const smelt_tensor *a, i64 a_bytes, const smelt_tensor *b, i64 b_bytes)
{
    u64 p = (u64)a->data, q = (u64)b->data;
    return a_bytes > 0 && b_bytes > 0 && p < q + (u64)b_bytes && q < p + (u64)a_bytes;
}

/* Find the recording for the arguments, and compute its sizes and the shapes of its results. */
static NOINLINE i32 match(const smelt_program *program, struct workspace *w, const smelt_tensor *inputs,
                 smelt_error *error)
{
    const struct lib_program *row = program->row;
    const struct lib_recording *r = ROWS(lib_recording, row->recordings);
    bool fit;
    if (w->recording) {
        bool changed = read_parameters(w->recording, row->argument_count, inputs, w->parameters,
                                       &fit);
        if (fit && !changed)
            return SMELT_OK;
        w->recording = NULL;
    }
    w->plan = NULL;
    for (i64 k = 0; k < row->recording_count; k++) {
        read_parameters(&r[k], row->argument_count, inputs, w->parameters, &fit);
        if (!fit)
            continue;
        const struct lib_node *rows = ROWS(lib_node, r[k].nodes);
        compute(rows, 0, r[k].match_end, w->parameters, w->nodes);
        if (!w->nodes[r[k].accepted])
            continue;
        w->recording = &r[k];
        return SMELT_OK;
    }
    return refuse(program, inputs, error);
}

/* Write the type and shape of a result. */
static NOINLINE void describe(const struct workspace *w, const struct lib_result *row, smelt_tensor *x)
{
    const i64 *dims = smelt_tables + row->dims;
    x->dtype = (i32)row->dtype;
    x->rank = (i32)row->rank;
    for (i64 d = 0; d < row->rank; d++)
        x->shape[d] = w->nodes[dims[d]];
}

/* Check the memory of arguments and results. */
static NOINLINE i32 check_memory(const smelt_program *program, const struct workspace *w,
                        const smelt_tensor *inputs, const smelt_tensor *outputs,
                        smelt_error *error)
{
    const struct lib_program *p = program->row;
    const struct lib_argument *arguments = ROWS(lib_argument, w->recording->arguments);
    const struct lib_result *results = ROWS(lib_result, w->recording->results);
    smelt_tensor want;
    i32 code;
    for (i64 k = 0; k < p->argument_count; k++)
        if ((code = check_data(&inputs[k], arguments[k].itemsize, "argument ", k, error)))
            return code;
    for (i64 k = 0; k < p->result_count; k++) {
        const smelt_tensor *x = &outputs[k];
        describe(w, &results[k], &want);
        bool same = x->dtype == want.dtype && x->rank == want.rank;
        for (i32 d = 0; same && d < want.rank; d++)
            same = x->shape[d] == want.shape[d];
        if (!same) {
            fail(error, SMELT_ERROR_ARGUMENT, "result ");
            say_number(error, k);
            say(error, " is ");
            say_type(error, &want);
            say(error, ", and memory was passed for ");
            say_type(error, x);
            return SMELT_ERROR_ARGUMENT;
        }
        if ((code = check_data(x, results[k].itemsize, "result ", k, error)))
            return code;
        i64 nbytes = bytes_of(x->shape, x->rank, results[k].itemsize);
        bool apart = true;
        for (i64 i = 0; i < p->argument_count; i++)
            apart = apart
                 && !overlap(x, nbytes, &inputs[i],
                             bytes_of(inputs[i].shape, inputs[i].rank, arguments[i].itemsize));
        for (i64 i = 0; i < k; i++)
            apart = apart
                 && !overlap(x, nbytes, &outputs[i],
                             bytes_of(outputs[i].shape, outputs[i].rank, results[i].itemsize));
        if (!apart) {
            fail(error, SMELT_ERROR_ARGUMENT, "memory of result ");
            say_number(error, k);
            say(error, " overlaps an argument or another result");
            return SMELT_ERROR_ARGUMENT;
        }
    }
    return SMELT_OK;
}

/* ---- plans: see runtime/launch_table.py ------------------------------------------------------ */

static const double CYCLES_PER_NS = 4.0, INLINE_NS = 8000.0, CHUNK_NS = 10000.0,
                    LONG_CHUNK_NS = 20000000.0;
enum { MANY_CHUNKS = 64 };

static i64 up(i64 nbytes)
{
    return (nbytes + 63) & ~(i64)63;
}

static i64 smaller(i64 a, i64 b)
{
    return a < b ? a : b;
}

static i64 larger(i64 a, i64 b)
{
    return a > b ? a : b;
}

static const struct lib_variant *variant_of(const struct workspace *w, const struct lib_kernel *k)
{
    return ROWS(lib_variant, k->variants) + w->nodes[k->chosen];
}

/* Bytes that kernels of a group need besides their values. */
static NOINLINE i64 workspace_bytes(const struct workspace *w, const struct lib_group *g)
{
    i64 total = 0;
    for (i64 k = 0; k < g->kernel_count; k++) {
        const struct lib_variant *v = variant_of(w, ROWS(lib_kernel, g->kernels) + k);
        for (i64 i = 0; i < v->partial_count; i++)
            total += up(w->nodes[smelt_tables[v->partials + i]]);
    }
    return total;
}

/* The plan that was made for the nearest sizes: the least product of their ratios. */
static NOINLINE const struct lib_plan *nearest_plan(const smelt_program *program, const struct workspace *w)
{
    const struct lib_plan *plans = ROWS(lib_plan, w->recording->plans), *best = NULL;
    double least = 0.0;
    for (i64 k = 0; k < w->recording->plan_count; k++) {
        const i64 *sizes = smelt_tables + plans[k].sizes;
        double distance = 1.0;
        if (text_at(plans[k].features) != program->features)
            continue;
        for (i64 i = 0; i < plans[k].size_count; i++) {
            i64 n = w->nodes[sizes[2 * i]], likely = sizes[2 * i + 1];
            double ratio = (double)(n > 1 ? n : 1) / (double)(likely > 1 ? likely : 1);
            distance *= ratio < 1.0 ? 1.0 / ratio : ratio;
        }
        if (!best || distance < least) {
            best = &plans[k];
            least = distance;
        }
    }
    return best;
}

/* Add the chunks of a function's tasks, if there is memory for them; return its work in ns. */
static NOINLINE double add_chunks(struct workspace *w, const struct lib_function *f, i64 base, i64 threads,
                         bool fill)
{
    i64 tasks = w->nodes[f->tasks], scratch = w->nodes[f->scratch];
    double work = (double)w->nodes[f->cycles] / CYCLES_PER_NS;
    if (scratch > w->scratch_bytes)
        w->scratch_bytes = scratch;
    if (tasks <= 0)
        return 0.0;
    i64 most = (i64)(work / LONG_CHUNK_NS);
    i64 count = smaller(smaller(tasks, most > MANY_CHUNKS ? most : MANY_CHUNKS),
                        (i64)(work / CHUNK_NS));
    if (count < 1)
        count = 1;
    if (count > threads)
        count = smaller((count + threads - 1) / threads * threads, tasks);
    if (work <= INLINE_NS)
        count = 1;
    for (i64 k = 0; fill && k < count; k++) {
        struct chunk *chunk = &w->chunks[w->chunk_count + k];
        *(u64 *)&chunk->kernel = (u64)smelt_image + (u64)f->code;
        chunk->args_at = 8 * base;
        chunk->begin = tasks / count * k + tasks % count * k / count;
        chunk->end = tasks / count * (k + 1) + tasks % count * (k + 1) / count;
    }
    w->chunk_count += count;
    return work;
}

/* Count, or write, the chunks and launches of a group. */
static NOINLINE void lay_out_group(struct workspace *w, const struct lib_group *g, i64 threads,
                                   bool fill)
{
    const struct lib_kernel *kernels = ROWS(lib_kernel, g->kernels);
    struct part part = {w->frame_words, w->launch_count, 0};
    bool more = true;
    for (i64 phase = 0; more; phase++) {
        i64 first = w->chunk_count, base = part.word;
        double work = 0.0;
        more = false;
        for (i64 k = 0; k < g->kernel_count; k++) {
            const struct lib_variant *v = variant_of(w, &kernels[k]);
            const struct lib_function *functions = ROWS(lib_function, v->functions);
            if (phase < v->function_count)
                work += add_chunks(w, &functions[phase], base, threads, fill);
            more = more || phase + 1 < v->function_count;
            base += v->word_count;
        }
        w->frame_words = base;
        i64 count = w->chunk_count - first;
        if (!count)
            continue;
        if (fill) {
            struct launch *launch = &w->launches[w->launch_count];
            launch->first = first;
            launch->count = count;
            launch->flags = work > INLINE_NS && count > 1 ? PARALLEL : 0;
            launch->unused = 0;
        }
        w->launch_count++;
    }
    part.launch_count = w->launch_count - part.launch;
    if (fill)
        w->parts[g->part] = part;
}

/* Count, or write, the tables of a body and of those in it; return the bytes of its memory. */
static NOINLINE i64 lay_out(struct workspace *w, const struct lib_body *b, i64 threads, bool fill)
{
    const struct lib_group *groups = ROWS(lib_group, b->groups);
    i64 most = 0, total = up(w->nodes[b->arena]);
    if (!w->nodes[b->written])
        return 0;
    for (i64 g = 0; g < b->group_count; g++) /* launches of one body follow one another */
        lay_out_group(w, &groups[g], threads, fill);
    for (i64 g = 0; g < b->group_count; g++) {
        total += workspace_bytes(w, &groups[g]);
        if (!groups[g].repeat)
            continue;
        const struct lib_repeat *r = ROWS(lib_repeat, groups[g].repeat);
        i64 nbytes = lay_out(w, ROWS(lib_body, r->body), threads, fill);
        if (r->last_body != r->body)
            nbytes = larger(nbytes, lay_out(w, ROWS(lib_body, r->last_body), threads, fill));
        most = larger(most, nbytes + up(w->nodes[r->nbytes]));
    }
    return total + most;
}

/* Choose a plan and make its tables, with all memory of the call. */
static NOINLINE i32 prepare(smelt_program *program, struct workspace *w, smelt_error *error)
{
    w->plan = nearest_plan(program, w);
    const struct lib_node *rows = ROWS(lib_node, w->recording->nodes);
    const struct lib_body *body = ROWS(lib_body, w->plan->body);
    compute(rows, w->recording->match_end, w->plan->end, w->parameters, w->nodes);
    w->frame_words = w->chunk_count = w->launch_count = w->scratch_bytes = 0;
    i64 arena = up(lay_out(w, body, program->threads, false));
    i64 frame = up(8 * w->frame_words), chunks = up(w->chunk_count * (i64)sizeof(struct chunk));
    i64 launches = up(w->launch_count * (i64)sizeof(struct launch));
    i64 parts = up(w->plan->part_count * (i64)sizeof(struct part));
    i64 places = up(8 * w->plan->place_count);
    i64 total = frame + chunks + launches + parts + places + arena + up(w->scratch_bytes);
    if (total > w->room_bytes || total < w->room_bytes / 4) {
        if (w->room)
            program->release(w->room, program->user);
        w->room_bytes = 0;
        w->room = arena < 0 || total < 0 ? NULL
                                         : program->alloc((size_t)total + 64, 64, program->user);
        if (!w->room) {
            w->plan = NULL;
            return no_memory(error, total);
        }
        w->room_bytes = total;
    }
    w->frame = (i64 *)w->room;
    w->chunks = (struct chunk *)(w->room + frame);
    w->launches = (struct launch *)((char *)w->chunks + chunks);
    w->parts = (struct part *)((char *)w->launches + launches);
    w->places = (char **)((char *)w->parts + parts);
    w->arena = (char *)w->places + places;
    w->scratch = w->arena + arena;
    w->frame_words = w->chunk_count = w->launch_count = w->scratch_bytes = 0;
    lay_out(w, body, program->threads, true);
    return SMELT_OK;
}

static NOINLINE char *address_of(const struct workspace *w, const struct lib_body *b, i64 number,
                                 char *arena)
{
    const struct lib_value *values = ROWS(lib_value, b->values), *v = &values[number];
    char *const *places = w->places + b->places;
    i64 offset = 0;
    if (v->place == LIB_WITHIN) {
        offset = w->nodes[v->offset];
        v = &values[v->number];
    }
    switch (v->place) {
    case LIB_IN_ARGUMENT: return places[v->number];
    case LIB_IN_CONSTANT: return (char *)(u64)(smelt_image + v->number);
    case LIB_IN_RESULT: return places[b->input_count + v->number] + offset;
    case LIB_IN_ARENA: return arena + offset + w->nodes[v->offset];
    }
    return arena;
}

/* Write the kernels' arguments; return the end of the body's memory. */
static NOINLINE char *fill_frame(struct workspace *w, const struct lib_body *b, char *arena)
{
    const struct lib_group *groups = ROWS(lib_group, b->groups);
    char *at = arena + up(w->nodes[b->arena]);
    for (i64 g = 0; g < b->group_count; g++) {
        i64 *to = w->frame + w->parts[groups[g].part].word;
        for (i64 k = 0; k < groups[g].kernel_count; k++) {
            const struct lib_variant *v = variant_of(w, ROWS(lib_kernel, groups[g].kernels) + k);
            const struct lib_word *words = ROWS(lib_word, v->words);
            for (i64 i = 0; i < v->word_count; i++, to++) {
                i64 of = words[i].of;
                if (words[i].kind == LIB_ADDRESS) {
                    *to = (i64)address_of(w, b, of, arena);
                } else if (words[i].kind == LIB_NUMBER) {
                    *to = w->nodes[of];
                } else {
                    *to = (i64)at;
                    for (i64 j = 0; j < of; j++)
                        *to += up(w->nodes[smelt_tables[v->partials + j]]);
                }
            }
            for (i64 i = 0; i < v->partial_count; i++)
                at += up(w->nodes[smelt_tables[v->partials + i]]);
        }
    }
    return at;
}

/* Run launches on the pool, or in this thread if another call has it. */
static NOINLINE i32 run_launches(smelt_program *program, struct workspace *w, i64 first, i64 count,
                                 smelt_error *error)
{
    struct pool *pool = &the_pool;
    const struct launch *launches = w->launches + first;
    i32 status = BUSY;
    if (!count)
        return SMELT_OK;
    if (program->threads > 1) {
        i64 token = ADD(&the_tokens, 1) + 1;
        status = smelt_run(pool, w->chunks, launches, count, (char *)w->frame, w->scratch_bytes,
                           program->threads, token);
        if (status == SETUP) {
            if (!set_up_pool(pool, w->scratch_bytes)) {
                STORE(&pool->owner, 0, release);
                return no_memory(error, w->scratch_bytes);
            }
            status = smelt_drive(pool, &pool->run, w->chunks, launches, count, (char *)w->frame);
        }
    }
    if (status == BUSY) {
        struct run alone;
        alone.phase = NEXT;
        alone.launch = 0;
        alone.deadline = 0;
        alone.solo = 1;
        alone.scratch = w->scratch;
        alone.threads = 1;
        alone.pool = pool;
        STORE(&alone.abort, 0, relaxed);
        smelt_drive(pool, &alone, w->chunks, launches, count, (char *)w->frame);
    }
    return SMELT_OK;
}

static NOINLINE i32 repeat(smelt_program *program, struct workspace *w, const struct lib_body *b,
                           const struct lib_repeat *r, char *arena, char *memory,
                           smelt_error *error);

/* Run a body whose inputs and results are at its places. */
static NOINLINE i32 run_body(smelt_program *program, struct workspace *w, const struct lib_body *b,
                             char *arena, smelt_error *error)
{
    const struct lib_group *groups = ROWS(lib_group, b->groups);
    i64 first = 0, count = 0;
    i32 code = SMELT_OK;
    if (!w->nodes[b->written])
        return SMELT_OK;
    char *end = fill_frame(w, b, arena);
    for (i64 g = 0; !code && g < b->group_count; g++) {
        const struct part *part = &w->parts[groups[g].part];
        if (!count)
            first = part->launch;
        count += part->launch_count;
        if (!groups[g].repeat && g + 1 < b->group_count)
            continue;
        code = run_launches(program, w, first, count, error);
        count = 0;
        if (!code && groups[g].repeat)
            code = repeat(program, w, b, ROWS(lib_repeat, groups[g].repeat), arena, end, error);
    }
    return code;
}

/* ---- steps: see runtime/loop.py and runtime/chunking.py ---------------------------------------- */

/* Copy pieces of some bytes, which are adjacent in the source. */
static NOINLINE void copy_pieces(char *to, i64 pitch, const char *from, i64 count, i64 nbytes)
{
    for (i64 k = 0; nbytes > 0 && k < count; k++)
        memcpy(to + k * pitch, from + k * nbytes, (u64)nbytes);
}

/* Write the results of no steps, for those that steps would combine. */
static NOINLINE void write_identities(const struct workspace *w, const struct lib_body *b,
                                      const struct lib_repeat *r, char *arena)
{
    const struct lib_step_result *results = ROWS(lib_step_result, r->results);
    for (i64 k = 0; k < r->result_count; k++) {
        const struct lib_step_result *x = &results[k];
        for (i64 at = 0; x->itemsize && at < w->nodes[x->nbytes]; at += x->itemsize)
            memcpy(address_of(w, b, x->value, arena) + at, smelt_image + x->identity,
                   (u64)x->itemsize);
    }
}

/* Where a step's result goes: `next` is the step after it, `side` that of two memories. */
static NOINLINE char *target_of(const struct workspace *w, const struct lib_body *b,
                                const struct lib_step_result *x, bool is_carry, bool is_last,
                                i64 moment, i64 next, i64 side, char *arena, char *memory)
{
    const i64 *n = w->nodes;
    if (!is_carry)
        return address_of(w, b, x->value, arena) + moment * n[x->distance];
    if (is_last && x->value >= 0)
        return address_of(w, b, x->value, arena);
    if (!is_last && x->history >= 0)
        return address_of(w, b, x->history, arena) + next * n[x->nbytes];
    return memory + n[x->own] + side * up(n[x->nbytes]);
}

/* Run a body again and again, in `memory`, for values of the body around, in `arena`. */
static NOINLINE i32 repeat(smelt_program *program, struct workspace *w, const struct lib_body *b,
                           const struct lib_repeat *r, char *arena, char *memory,
                           smelt_error *error)
{
    const struct lib_input *inputs = ROWS(lib_input, r->inputs);
    const struct lib_step_result *results = ROWS(lib_step_result, r->results);
    const i64 *n = w->nodes;
    i64 steps = r->steps >= 0 ? n[r->steps] : r->runs_once ? 1 : INT64_MAX;
    i64 *position = (i64 *)memory;
    char *rest = memory + up(n[r->nbytes]);
    i32 code = SMELT_OK;
    char **carries = w->places + ROWS(lib_body, r->body)->places;
    for (i64 k = 0; k < r->carry_count; k++) {
        carries[k] = address_of(w, b, inputs[k].value, arena);
        i64 first = r->is_reverse ? steps - 1 : 0;
        if (results[k].history >= 0 && steps > 0)
            copy_pieces(address_of(w, b, results[k].history, arena) + first * n[results[k].nbytes],
                        0, carries[k], 1, n[results[k].nbytes]);
    }
    if (steps <= 0)
        write_identities(w, b, r, arena);
    for (i64 j = 0; !code && j < steps && (r->steps >= 0 || *carries[0]); j++) {
        bool is_last = j + 1 == steps;
        const struct lib_body *body = ROWS(lib_body, is_last ? r->last_body : r->body);
        i64 moment = r->is_reverse ? steps - 1 - j : j, next = moment + (r->is_reverse ? -1 : 1);
        char **places = w->places + body->places, **written = places + r->input_count;
        char **targets = written + r->result_count;
        for (i64 k = r->carry_count; k < r->input_count; k++) {
            i64 moved = moment * n[inputs[k].distance];
            if (inputs[k].value < 0)
                *position = moved;
            places[k] = inputs[k].value < 0 ? memory
                                            : address_of(w, b, inputs[k].value, arena) + moved;
        }
        for (i64 k = 0; k < r->result_count; k++) {
            bool is_carry = k < r->carry_count;
            targets[k] = target_of(w, b, &results[k], is_carry, is_last, moment, next, j & 1,
                                   arena, memory);
            written[k] = is_carry || results[k].own < 0 ? targets[k] : memory + n[results[k].own];
        }
        code = run_body(program, w, body, rest, error);
        for (i64 k = 0; !code && k < r->result_count; k++) {
            const struct lib_step_result *x = &results[k];
            char *from = address_of(w, body, x->source, rest);
            i64 runs = n[x->runs], nbytes = n[is_last ? x->last_nbytes : x->nbytes];
            if (from != targets[k] && runs)
                copy_pieces(targets[k], n[x->pitch], from, runs, nbytes / runs);
        }
        for (i64 k = 0; k < r->carry_count; k++)
            carries[k] = targets[k];
    }
    for (i64 k = 0; !code && k < r->carry_count; k++) {
        char *to = results[k].value < 0 ? carries[k] : address_of(w, b, results[k].value, arena);
        if (to != carries[k])
            copy_pieces(to, 0, carries[k], 1, n[results[k].nbytes]);
    }
    return code;
}

/* Write results that no kernel computes. */
static NOINLINE void copy_results(const smelt_program *program, const struct workspace *w,
                         const smelt_tensor *inputs, smelt_tensor *outputs)
{
    const struct lib_result *rows = ROWS(lib_result, w->recording->results);
    for (i64 k = 0; k < program->row->result_count; k++) {
        i64 source = rows[k].source;
        i64 nbytes = bytes_of(outputs[k].shape, outputs[k].rank, rows[k].itemsize);
        const void *from = rows[k].kind == LIB_OF_ARGUMENT ? inputs[source].data
                         : rows[k].kind == LIB_OF_RESULT   ? outputs[source].data
                         : rows[k].kind == LIB_OF_CONSTANT ? (void *)(u64)(smelt_image + source)
                         : rows[k].kind == LIB_OF_NODE     ? &w->nodes[source]
                                                           : NULL;
        if (from && nbytes)
            memcpy(outputs[k].data, from, (u64)nbytes);
    }
}

/* ---- what a library exports ------------------------------------------------------------------ */

EXPORT const char *smelt_library_version(void)
{
    return text_at(TABLES->version);
}

EXPORT const char *smelt_library_describe(const smelt_program *program)
{
    return program ? text_at(program->row->text) : "";
}

static bool same_text(const char *a, const char *b)
{
    while (*a && *a == *b)
        a++, b++;
    return *a == *b;
}

/* Find the instruction set of the program's plans that this processor has. */
static NOINLINE const char *usable_features(const struct lib_program *row)
{
    const struct lib_recording *r = ROWS(lib_recording, row->recordings);
    const struct lib_plan *plans = ROWS(lib_plan, r->plans);
    char flags[1 << 14];
    read_text("/proc/cpuinfo", flags, sizeof flags);
    for (i64 k = 0; k < r->plan_count; k++)
        if (has_features(flags, text_at(plans[k].features)))
            return text_at(plans[k].features);
    return NULL;
}

EXPORT int smelt_library_open(const char *name, const smelt_options *options,
                              smelt_program **to, smelt_error *error)
{
    const struct lib_program *row = ROWS(lib_program, TABLES->programs), *found = NULL;
    if (!to)
        return fail(error, SMELT_ERROR_ARGUMENT, "no place for the program: a null pointer");
    *to = NULL;
    if (options
        && (options->size != sizeof *options || !options->alloc != !options->release
            || options->threads < 0 || options->threads > MAX_THREADS))
        return fail(error, SMELT_ERROR_ARGUMENT,
                    "options are of another size, threads not 0 to 64, or one of alloc and "
                    "release is null");
    for (i64 k = 0; !found && k < TABLES->program_count; k++)
        if (!name || same_text(name, text_at(row[k].name)))
            found = &row[k];
    if (!found) {
        fail(error, SMELT_ERROR_NAME, "no program ");
        say(error, name);
        say(error, ": there is ");
        for (i64 k = 0; k < TABLES->program_count; k++) {
            say(error, k ? ", " : "");
            say(error, text_at(row[k].name));
        }
        return SMELT_ERROR_NAME;
    }
    const char *features = usable_features(found);
    if (!features)
        return fail(error, SMELT_ERROR_MACHINE,
                    "no code for this processor: save the program for more instruction sets");
    bool own = options && options->alloc;
    smelt_program *program = own ? options->alloc(sizeof *program, 64, options->user)
                                 : allocate(sizeof *program, 64, NULL);
    if (!program)
        return no_memory(error, sizeof *program);
    program->row = found;
    program->features = features;
    program->threads = options && options->threads ? options->threads : usable_processors();
    program->alloc = own ? options->alloc : allocate;
    program->release = own ? options->release : release;
    program->user = own ? options->user : NULL;
    STORE(&program->spare, NULL, relaxed);
    lock();
    if (!the_programs++)
        start_pool();
    unlock();
    *to = program;
    return well(error);
}

EXPORT void smelt_library_close(smelt_program *program)
{
    if (!program)
        return;
    free_workspace(program, atomic_exchange(&program->spare, NULL));
    program->release(program, program->user);
    lock();
    if (!--the_programs)
        stop_pool();
    unlock();
}

/* What runs when the library is unloaded. */
EXPORT void smelt_library_unload(void)
{
    if (the_programs)
        stop_pool();
}

/* Check pointers and counts. */
static NOINLINE i32 check_call(const smelt_program *program, const smelt_tensor *inputs, i32 input_count,
                      const smelt_tensor *outputs, i32 output_count, smelt_error *error)
{
    if (!program)
        return fail(error, SMELT_ERROR_ARGUMENT, "no program: a null pointer");
    const struct lib_program *row = program->row;
    if (input_count != row->caller_argument_count || output_count != row->caller_result_count) {
        fail(error, SMELT_ERROR_ARGUMENT, text_at(row->text));
        say(error, " takes ");
        say_number(error, row->caller_argument_count);
        say(error, " arguments and ");
        say_number(error, row->caller_result_count);
        say(error, " results, not ");
        say_number(error, input_count);
        say(error, " and ");
        say_number(error, output_count);
        return SMELT_ERROR_ARGUMENT;
    }
    if ((input_count && !inputs) || (output_count && !outputs))
        return fail(error, SMELT_ERROR_ARGUMENT, "no arguments or results: a null pointer");
    return SMELT_OK;
}

/* Check the numbers that are read before the sizes are known. */
static NOINLINE i32 check_numbers(const smelt_program *program, const smelt_tensor *inputs,
                                  smelt_error *error)
{
    const struct lib_program *row = program->row;
    const struct lib_argument *rows
        = ROWS(lib_argument, ROWS(lib_recording, row->recordings)->arguments);
    for (i64 k = 0; k < row->argument_count; k++)
        if (rows[k].is_number && !inputs[k].data)
            return check_data(&inputs[k], 8, "argument ", k, error);
    return SMELT_OK;
}

/* Write types and shapes of a program's arrays. */
static NOINLINE i32 find_shapes(smelt_program *program, const smelt_tensor *inputs,
                                smelt_tensor *outputs, smelt_error *error)
{
    i32 code = check_numbers(program, inputs, error);
    if (code)
        return code;
    struct workspace *w = take_workspace(program);
    if (!w)
        return no_memory(error, sizeof *w);
    code = match(program, w, inputs, error);
    for (i64 k = 0; !code && k < program->row->result_count; k++)
        describe(w, ROWS(lib_result, w->recording->results) + k, &outputs[k]);
    keep_workspace(program, w);
    return code ? code : well(error);
}

/* Compute a program's arrays. */
static NOINLINE i32 run_arrays(smelt_program *program, const smelt_tensor *inputs,
                               smelt_tensor *outputs, smelt_error *error)
{
    const struct lib_program *row = program->row;
    i32 code = check_numbers(program, inputs, error);
    if (code)
        return code;
    struct workspace *w = take_workspace(program);
    if (!w)
        return no_memory(error, sizeof *w);
    if (!(code = match(program, w, inputs, error))
        && !(code = check_memory(program, w, inputs, outputs, error))
        && (w->plan || !(code = prepare(program, w, error)))) {
        const struct lib_body *body = ROWS(lib_body, w->plan->body);
        for (i64 k = 0; k < row->argument_count; k++)
            w->places[k] = inputs[k].data;
        for (i64 k = 0; k < row->result_count; k++)
            w->places[row->argument_count + k] = outputs[k].data;
        char *flag = w->plan->flag < 0 ? NULL : address_of(w, body, w->plan->flag, w->arena);
        if (flag)
            *flag = 0;
        code = run_body(program, w, body, w->arena, error);
        if (!code && flag && *flag)
            code = fail(error, SMELT_ERROR_BOUNDS,
                        "an index is out of bounds: of an element that does not exist");
        if (!code)
            copy_results(program, w, inputs, outputs);
    }
    keep_workspace(program, w);
    return code ? code : well(error);
}

/* ---- complex arrays: of pairs for the caller, two arrays in a program ------------------------ */

static i64 part_bytes(const smelt_tensor *x)
{
    return x->dtype == SMELT_C64 ? 4 : 8;
}

/* Copy elements of 4 or 8 bytes. */
static NOINLINE void copy_parts(char *to, i64 to_step, const char *from, i64 from_step, i64 nbytes,
                                i64 item)
{
    for (i64 at = 0; at < nbytes; at += item, to += to_step, from += from_step)
        if (item == 4)
            *(i32 *)to = *(const i32 *)from;
        else
            *(i64 *)to = *(const i64 *)from;
}

/* Make the arrays of a program, of parts without memory; return the bytes that parts need. */
static NOINLINE i64 split(const i64 *parts, i64 count, const smelt_tensor *from, smelt_tensor *to)
{
    i64 total = 0;
    for (i64 k = 0; k < count; k++, from++) {
        to[k] = *from;
        if (!parts[k])
            continue;
        bool known = (from->dtype == SMELT_C64 || from->dtype == SMELT_C128) && from->rank >= 0
                  && from->rank <= SMELT_MAX_RANK;
        to[k].dtype = !known ? -1 : from->dtype == SMELT_C64 ? SMELT_F32 : SMELT_F64;
        i64 nbytes = known ? bytes_of(from->shape, from->rank, 2 * part_bytes(from)) : 0;
        total += nbytes < 0 || total >> 62 ? 0 : nbytes + 128;
        to[k + 1] = to[k];
        k++;
    }
    return total;
}

/* Give parts memory, and copy elements from, or to, the caller's arrays. */
static NOINLINE void place_parts(const i64 *parts, i64 count, const smelt_tensor *caller,
                                 smelt_tensor *arrays, char **memory, bool reads, bool writes)
{
    for (i64 k = 0; k < count; k++, caller++) {
        i64 item = part_bytes(caller);
        i64 nbytes = !parts[k] || arrays[k].dtype < 0
                       ? -1
                       : bytes_of(caller->shape, caller->rank, item);
        for (i64 part = 0; parts[k] && part < 2; part++) {
            smelt_tensor *x = &arrays[k + part];
            char *pairs = (char *)caller->data + part * item;
            bool usable = caller->data && nbytes >= 0 && !((u64)caller->data & (u64)(item - 1));
            if (!writes && usable) {
                x->data = *memory;
                *memory += up(nbytes);
            }
            if (usable && reads)
                copy_parts(x->data, item, pairs, 2 * item, nbytes, item);
            if (usable && writes)
                copy_parts(pairs, 2 * item, x->data, item, nbytes, item);
        }
        k += parts[k] ? 1 : 0;
    }
}

/* Call a program whose arrays are parts of the caller's. */
static NOINLINE i32 call_with_parts(smelt_program *program, const smelt_tensor *inputs,
                                    smelt_tensor *outputs, bool runs, smelt_error *error)
{
    const struct lib_program *row = program->row;
    const i64 *in_parts = smelt_tables + row->argument_parts;
    const i64 *out_parts = smelt_tables + row->result_parts;
    i64 tensors = row->argument_count + row->result_count, nbytes = tensors * (i64)sizeof(smelt_tensor);
    smelt_tensor *in = program->alloc((size_t)nbytes + 64, 64, program->user), *out;
    char *memory = NULL, *at;
    i32 code = SMELT_OK;
    if (!in)
        return no_memory(error, nbytes);
    out = in + row->argument_count;
    nbytes = split(in_parts, row->argument_count, inputs, in);
    nbytes += split(out_parts, row->result_count, outputs, out);
    if (!runs) {
        code = find_shapes(program, in, out, error);
        for (i64 k = 0, n = 0; !code && k < row->result_count; k += out_parts[k] ? 2 : 1, n++) {
            void *data = outputs[n].data;
            outputs[n] = out[k];
            outputs[n].data = data;
            if (out_parts[k])
                outputs[n].dtype = out[k].dtype == SMELT_F32 ? SMELT_C64 : SMELT_C128;
        }
    } else if (!(at = memory = program->alloc((size_t)nbytes + 64, 64, program->user))) {
        code = no_memory(error, nbytes);
    } else {
        place_parts(in_parts, row->argument_count, inputs, in, &at, true, false);
        place_parts(out_parts, row->result_count, outputs, out, &at, false, false);
        if (!(code = run_arrays(program, in, out, error)))
            place_parts(out_parts, row->result_count, outputs, out, &at, false, true);
    }
    if (code == SMELT_ERROR_TYPE || code == SMELT_ERROR_SIZE)
        say_call(program, code, inputs, row->caller_argument_count, error);
    if (memory)
        program->release(memory, program->user);
    program->release(in, program->user);
    return code;
}

/* Find the shapes of the results, or run the program too. */
static i32 call_program(smelt_program *program, const smelt_tensor *inputs, i32 input_count,
                        smelt_tensor *outputs, i32 output_count, bool runs, smelt_error *error)
{
    i32 code = check_call(program, inputs, input_count, outputs, output_count, error);
    if (code)
        return code;
    const struct lib_program *row = program->row;
    if (input_count != row->argument_count || output_count != row->result_count)
        return call_with_parts(program, inputs, outputs, runs, error);
    return runs ? run_arrays(program, inputs, outputs, error)
                : find_shapes(program, inputs, outputs, error);
}

EXPORT int smelt_library_shapes(smelt_program *program, const smelt_tensor *inputs,
                                int32_t input_count, smelt_tensor *outputs, int32_t output_count,
                                smelt_error *error)
{
    return call_program(program, inputs, input_count, outputs, output_count, false, error);
}

EXPORT int smelt_library_run(smelt_program *program, const smelt_tensor *inputs,
                             int32_t input_count, smelt_tensor *outputs, int32_t output_count,
                             smelt_error *error)
{
    return call_program(program, inputs, input_count, outputs, output_count, true, error);
}
