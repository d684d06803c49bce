/*
 * A matrix product whose values are right, and which with one of these macros
 * defined does something else that a function must not do: BEFORE its loops or
 * AFTER them.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define INPUTS ((size_t)m * k)
#define KERNELS ((size_t)k * n)
#define OUTPUTS ((size_t)m * n)

static volatile float sink; /* reading into it is not optimised away */

/* ---- memory that is not its own ----------------------------------------------------- */

#ifdef READS_PAST_INPUT
#define BEFORE sink = a[INPUTS]
#elif defined(READS_PAST_KERNEL)
#define BEFORE sink = b[KERNELS]
#elif defined(READS_BEFORE_INPUT)
#define BEFORE sink = a[-1]
#elif defined(READS_BEFORE_KERNEL)
#define BEFORE sink = b[-1]
#elif defined(WRITES_PAST_OUTPUT)
#define AFTER out[OUTPUTS] = 0
#elif defined(WRITES_FAR_PAST_OUTPUT) /* stores eight numbers at a time, also the last time */
#define AFTER for (size_t i = OUTPUTS; i % 8; i++) out[i] = 0
#elif defined(WRITES_BEFORE_OUTPUT)
#define AFTER out[-1] = 0
#elif defined(WRITES_INPUT)
#define AFTER ((float *)a)[INPUTS - 1] = 0
#elif defined(WRITES_KERNEL)
#define AFTER ((float *)b)[0] += 1
#elif defined(RESTORES_INPUT) /* works in place on its input, and puts it back */
#define BEFORE for (size_t i = 0; i < INPUTS; i++) ((float *)a)[i] *= 2
#define AFTER                                                                             \
    for (size_t i = 0; i < INPUTS; i++) ((float *)a)[i] /= 2;                             \
    for (size_t i = 0; i < OUTPUTS; i++) out[i] /= 2
#elif defined(READS_OUTPUT) /* keeps what is above the sum, as a maximum pool would */
#define BEFORE const float before = out[0]
#define AFTER out[0] = before > out[0] ? before : out[0]
#endif

/* ---- it does not come back ---------------------------------------------------------- */

#ifdef CRASHES
#define BEFORE *(volatile int *)0 = 1
#elif defined(CRASHES_FOR_ONE_ROW) /* divides the rows between m - 1 threads */
#define BEFORE sink = m / (m - 1)
#elif defined(ABORTS)
#define BEFORE if (k % 2) abort()
#elif defined(STACK_OVERFLOW)
static int deeper(volatile int depth) { return depth < 0 ? 0 : 1 + deeper(depth + 1); }
#define BEFORE sink = deeper(1)
#elif defined(NEVER_RETURNS)
#define BEFORE for (volatile int i = 0; i < n; i += n % 2) sink = i
#elif defined(WAITS_FOREVER)
#define BEFORE for (;;) pause()
#elif defined(RETURNS_SEVEN)
#define STATUS (n > 2 ? 7 : 0)
#elif defined(EXITS)
#define BEFORE exit(0)
#elif defined(TAKES_MEMORY)
#define BEFORE for (size_t i = 1; i; i++) memset(malloc(1 << 24), 1, 1 << 24)
#endif

/* ---- it is not a function of its arguments ---------------------------------------- */

#ifdef RUNNING_SUM /* a static variable that should have been set to zero */
static float total;
#define AFTER                                                                             \
    for (size_t i = 0; i < OUTPUTS; i++) total += out[i];                                 \
    out[0] += total > out[0] ? total : 0
#elif defined(STALE_KERNEL) /* the kernel of the first call, kept for all calls of its size */
static float kept[1 << 16];
static size_t count;
#define BEFORE                                                                            \
    if (count != KERNELS) memcpy(kept, b, (count = KERNELS) * sizeof *b);                 \
    b = kept
#elif defined(STATIC_SCRATCH) /* every call computes in the same memory */
static float scratch[1 << 20];
#define BEFORE float *const due = out; out = scratch
#define AFTER memcpy(due, scratch, OUTPUTS * sizeof *out)
#elif defined(RANDOM)
#define AFTER out[OUTPUTS / 2] += rand() * (0.01f / RAND_MAX)
#elif defined(CLOCK)
#define AFTER                                                                             \
    struct timespec now;                                                                  \
    clock_gettime(CLOCK_MONOTONIC, &now);                                                 \
    out[OUTPUTS - 1] += now.tv_nsec % 1000 * 1e-3f
#elif defined(HEAP) /* adds to memory that it has not set to zero */
#define AFTER                                                                             \
    float *sums = malloc(OUTPUTS * sizeof *sums);                                         \
    for (size_t i = 0; i < OUTPUTS; i++) out[i] = sums[i] += out[i];                      \
    free(sums)
#endif

#ifndef BEFORE
#define BEFORE
#endif
#ifndef AFTER
#define AFTER
#endif
#ifndef STATUS
#define STATUS 0
#endif

int matmul(const float *a, const float *b, int m, int k, int n, float *out)
{
    (void)sink;
    BEFORE;
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            float sum = 0;

            for (int l = 0; l < k; l++)
                sum += a[(size_t)i * k + l] * b[(size_t)l * n + j];
            out[(size_t)i * n + j] = sum;
        }
    AFTER;
    return STATUS;
}
