/*
 * engine/pin.c - pinned prefixes: the beginning of a timeline that stays although no session holds it
 *
 * A pin is a session of the engine's own, forked and cut to the prefix. It is in the session list, so that
 * the ledger counts it and sync can copy from its unfinished last block.
 */
#include "engine/engine.h"

plp_status plp_session_pin(plp_session *s, uint32_t n, uint64_t *pin, plp_error *err)
{
    plp_session *p = NULL;
    plp_status status = plp_session_enter(s, err);
    if (status < 0)
        return status;
    if (n == 0 || n > s->n_computed)
        status = plp_fail(err, PLP_E_ARG, "pin: %u tokens; the session has %u computed ones", n, s->n_computed);
    else if ((status = plp_spill_restore(s, err)) == PLP_OK && (status = plp_session_fork_locked(&p, s, err)) == PLP_OK) {
        plp_session_cut(p, n, false);
        p->pinned = true;
        p->pin_id = *pin = ++s->engine->next_pin;
    }
    plp_session_leave(s);
    return status;
}

plp_status plp_engine_unpin(plp_engine *e, uint64_t pin, plp_error *err)
{
    plp_session *p;
    plp_mutex_lock(e->lock);
    for (p = e->sessions; p && !(p->pinned && p->pin_id == pin); p = p->after) {}
    if (p)
        plp_session_unmake(p);
    plp_mutex_unlock(e->lock);
    return p ? PLP_OK : plp_fail(err, PLP_E_ARG, "unpin: no prefix is pinned as %llu", (unsigned long long)pin);
}
