/*
 * base/threads.h - the worker team that every parallel operation runs on
 *
 * A team of n has the caller and n - 1 workers. plp_team_run makes all n call fn(arg, id, n) and
 * returns when all have; the caller is id 0. Between runs workers spin for some microseconds, then
 * sleep, so that a waiting chat uses no CPU. Results must not depend on n:
 * split work by fixed sizes and hand the pieces out with plp_team_next.
 *
 * Threads  one caller at a time. Workers do not survive fork(): plp_team_prepare, called before a
 *          series of runs, starts new ones in a child.
 */
#ifndef PLP_BASE_THREADS_H
#define PLP_BASE_THREADS_H

#include "base/status.h"

typedef struct plp_team plp_team;
typedef void (*plp_team_fn)(void *arg, uint32_t id, uint32_t n);

plp_status plp_team_open(plp_team **out, uint32_t n, plp_error *err);
void       plp_team_close(plp_team *t);
void       plp_team_prepare(plp_team *t);
uint32_t   plp_team_size(const plp_team *t);
void       plp_team_run(plp_team *t, plp_team_fn fn, void *arg);
/* The same with the caller alone, for work too small to be worth waking anybody. */
void       plp_team_run_alone(plp_team *t, plp_team_fn fn, void *arg);
/* The next piece of the current run, 0, 1, 2, ...: each number goes to one thread. */
uint32_t   plp_team_next(plp_team *t);
/* The next of n_pieces pieces for thread id, or UINT32_MAX. Each thread begins with a range of its own, in
 * rising order, so that it walks memory as one stream, and then helps those who are behind. Not to be
 * mixed with plp_team_next in one run. */
uint32_t   plp_team_take(plp_team *t, uint32_t id, uint32_t n_pieces);

#endif
