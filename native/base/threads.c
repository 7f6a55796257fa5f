/*
 * base/threads.c - the worker team
 *
 * One line of shared state a field, so that a spinning reader never shares a cache line with a writer
 * of something else. A run: the caller stores fn and arg, raises `epoch`, works as id 0, and waits until
 * `done` counts n - 1. Waiting spins a little (a decode step has hundreds of runs a few microseconds
 * apart), yields, then sleeps on a condition; the waker takes the mutex only if somebody sleeps.
 */
#include "base/threads.h"
#include "base/mem.h"
#include "base/platform.h"

#include <sched.h>
#include <stdatomic.h>

#define LINE _Alignas(64)
enum { SPINS = 4000, YIELDS = 64 };

typedef struct worker {
    plp_team   *team;
    uint32_t    id;
    plp_thread *thread;
    LINE _Atomic uint32_t taken;            /* pieces of its own range handed out: plp_team_take */
} worker;

struct plp_team {
    LINE _Atomic uint32_t epoch;            /* raised once per run */
    LINE _Atomic uint32_t done;             /* workers that finished this run */
    LINE _Atomic uint32_t next;             /* plp_team_next */
    LINE _Atomic uint32_t sleepers;
    _Atomic bool          stop;
    plp_team_fn           fn;
    void                 *arg;
    uint32_t              n;
    int64_t               process;          /* where the workers live */
    plp_mutex            *mutex;
    worker               *workers;          /* [n]; entry 0 is the caller, without a thread */
};

static inline void relax(void)
{
#if defined __x86_64__
    __builtin_ia32_pause();
#elif defined __aarch64__
    __asm__ volatile("yield");
#endif
}

/* Wait until *word is no longer `old`. */
static void await(plp_team *t, _Atomic uint32_t *word, uint32_t old, bool may_sleep)
{
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load_explicit(word, memory_order_acquire) != old)
            return;
        relax();
    }
    /* With more threads than cores the one awaited may need this very core. */
    for (int i = 0; i < YIELDS || !may_sleep; i++) {
        if (atomic_load_explicit(word, memory_order_acquire) != old)
            return;
        sched_yield();
    }
    plp_mutex_lock(t->mutex);
    atomic_fetch_add(&t->sleepers, 1);
    while (atomic_load(word) == old)
        plp_mutex_wait(t->mutex);
    atomic_fetch_sub(&t->sleepers, 1);
    plp_mutex_unlock(t->mutex);
}

static void wake(plp_team *t)
{
    if (atomic_load(&t->sleepers)) {        /* sequentially consistent with the store before it */
        plp_mutex_lock(t->mutex);
        plp_mutex_wake_all(t->mutex);
        plp_mutex_unlock(t->mutex);
    }
}

static void worker_main(void *arg)
{
    worker *w = arg;
    plp_team *t = w->team;
    for (uint32_t seen = 0;; ) {
        await(t, &t->epoch, seen, true);
        seen++;
        if (atomic_load(&t->stop))
            return;
        t->fn(t->arg, w->id, t->n);
        atomic_fetch_add(&t->done, 1);
        wake(t);
    }
}

static void stop_workers(plp_team *t)
{
    if (!t->workers)
        return;
    atomic_store(&t->stop, true);
    atomic_fetch_add(&t->epoch, 1);
    wake(t);
    for (uint32_t i = 1; i < t->n; i++)
        plp_thread_join(t->workers[i].thread);
}

/* False: not all could be started; those that were are stopped again. */
static bool start_workers(plp_team *t)
{
    atomic_store(&t->epoch, 0);
    atomic_store(&t->sleepers, 0);
    atomic_store(&t->stop, false);
    t->process = plp_process_id();
    for (uint32_t i = 1; i < t->n; i++) {
        t->workers[i].team = t;
        t->workers[i].id = i;
        if (!(t->workers[i].thread = plp_thread_start(worker_main, &t->workers[i]))) {
            t->n = i;
            stop_workers(t);
            return false;
        }
    }
    return true;
}

plp_status plp_team_open(plp_team **out, uint32_t n, plp_error *err)
{
    if (n == 0 || n > 1024)
        return plp_fail(err, PLP_E_ARG, "threads: %u asked for; 1 to 1024 are possible", n);
    plp_team *t = plp_zalloc(PLP_MEM_OTHER, 1, sizeof *t);
    if (!t)
        return plp_fail(err, PLP_E_NOMEM, "threads: no memory for a team of %u", n);
    t->n = n;
    t->mutex = plp_mutex_open();
    t->workers = plp_zalloc(PLP_MEM_OTHER, n, sizeof *t->workers);
    if (!t->mutex || !t->workers || !start_workers(t)) {
        plp_free(t->workers);
        t->workers = NULL;
        plp_team_close(t);
        return plp_fail(err, PLP_E_NOMEM, "threads: the system refused %u of them", n);
    }
    *out = t;
    return PLP_OK;
}

void plp_team_close(plp_team *t)
{
    if (!t)
        return;
    if (t->process == plp_process_id())     /* in a forked child there is nobody to stop */
        stop_workers(t);
    plp_free(t->workers);
    plp_mutex_close(t->mutex);
    plp_free(t);
}

void plp_team_prepare(plp_team *t)
{
    if (t->n == 1 || t->process == plp_process_id())
        return;
    /* Forked: the mutex may have been copied while held, and the workers are gone. */
    plp_mutex *fresh = plp_mutex_open();
    if (fresh)
        t->mutex = fresh;
    if (!fresh || !start_workers(t))
        t->n = 1;                           /* slower, and the same bits */
}

uint32_t plp_team_size(const plp_team *t) { return t->n; }

static void reset_counts(plp_team *t)
{
    atomic_store_explicit(&t->next, 0, memory_order_relaxed);
    for (uint32_t i = 0; i < t->n; i++)
        atomic_store_explicit(&t->workers[i].taken, 0, memory_order_relaxed);
}

void plp_team_run_alone(plp_team *t, plp_team_fn fn, void *arg)
{
    reset_counts(t);
    fn(arg, 0, 1);
}

void plp_team_run(plp_team *t, plp_team_fn fn, void *arg)
{
    if (t->n == 1) {
        plp_team_run_alone(t, fn, arg);
        return;
    }
    reset_counts(t);
    t->fn = fn;
    t->arg = arg;
    atomic_store(&t->done, 0);
    atomic_fetch_add(&t->epoch, 1);
    wake(t);
    fn(arg, 0, t->n);
    for (uint32_t have; (have = atomic_load_explicit(&t->done, memory_order_acquire)) != t->n - 1; )
        await(t, &t->done, have, false);
}

uint32_t plp_team_next(plp_team *t)
{
    return atomic_fetch_add_explicit(&t->next, 1, memory_order_relaxed);
}

uint32_t plp_team_take(plp_team *t, uint32_t id, uint32_t n_pieces)
{
    for (uint32_t k = 0; k < t->n; k++) {
        const uint32_t i = (id + k) % t->n;
        const uint32_t first = (uint32_t)((uint64_t)n_pieces * i / t->n), end = (uint32_t)((uint64_t)n_pieces * (i + 1) / t->n);
        /* Looking first keeps finished ranges' counters from being written by everybody. */
        if (atomic_load_explicit(&t->workers[i].taken, memory_order_relaxed) >= end - first)
            continue;
        const uint32_t at = atomic_fetch_add_explicit(&t->workers[i].taken, 1, memory_order_relaxed);
        if (at < end - first)
            return first + at;
    }
    return UINT32_MAX;
}
