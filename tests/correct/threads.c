/* Matrix products that start threads, keep scratch per thread, take a lock or take their time. */
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <time.h>

#define SIGNATURE(name)                                                                   \
    void name(const float *a, const float *b, int m, int k, int n, float *out)

struct rows {
    const float *a, *b;
    int first, last, k, n;
    float *out;
};

static void *compute(void *argument)
{
    const struct rows *r = argument;

    for (int i = r->first; i < r->last; i++)
    for (int j = 0; j < r->n; j++) {
        float sum = 0;
        for (int l = 0; l < r->k; l++)
            sum += r->a[(size_t)i * r->k + l] * r->b[(size_t)l * r->n + j];
        r->out[(size_t)i * r->n + j] = sum;
    }
    return NULL;
}

/* The second half of the rows in a thread of its own. */
SIGNATURE(threaded)
{
    struct rows upper = {a, b, 0, m / 2, k, n, out}, lower = {a, b, m / 2, m, k, n, out};
    pthread_t other;
    const int failed = pthread_create(&other, NULL, compute, &lower);

    compute(&upper);
    if (failed)
        compute(&lower);
    else
        pthread_join(other, NULL);
}

/* A column of the second operand, kept for as long as the thread lives. */
SIGNATURE(scratch_per_thread)
{
    static _Thread_local float *column;
    static _Thread_local int room;

    if (k > room)
        column = realloc(column, (size_t)(room = k) * sizeof *column);
    for (int j = 0; j < n; j++) {
        for (int l = 0; l < k; l++)
            column[l] = b[(size_t)l * n + j];
        for (int i = 0; i < m; i++) {
            float sum = 0;
            for (int l = 0; l < k; l++)
                sum += a[(size_t)i * k + l] * column[l];
            out[(size_t)i * n + j] = sum;
        }
    }
}

/* One scratch for all threads, behind a lock. */
SIGNATURE(locked)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static float *row;
    static int room;

    pthread_mutex_lock(&lock);
    if (n > room)
        row = realloc(row, (size_t)(room = n) * sizeof *row);
    for (int i = 0; i < m; i++) {
        for (int j = 0; j < n; j++)
            row[j] = 0;
        for (int l = 0; l < k; l++)
            for (int j = 0; j < n; j++)
                row[j] += a[(size_t)i * k + l] * b[(size_t)l * n + j];
        for (int j = 0; j < n; j++)
            out[(size_t)i * n + j] = row[j];
    }
    pthread_mutex_unlock(&lock);
}

/* Ten milliseconds for each call, as on a simulator. */
SIGNATURE(patient)
{
    struct rows all = {a, b, 0, m, k, n, out};

    nanosleep(&(struct timespec){0, 10000000}, NULL);
    compute(&all);
}
