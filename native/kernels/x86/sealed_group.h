/* kernels/x86/sealed_group.h - which queries the x86 tiers take side by side through a sealed tile */
#ifndef PLP_KERNELS_X86_SEALED_GROUP_H
#define PLP_KERNELS_X86_SEALED_GROUP_H

#include "kernels/kernels.h"
#include "kernels/sealed.h"
#include "kernels/x86/packed.h"

enum { LEN = PLP_SEALED_LEN, MAX_DIM = PLP_MAX_HEAD_DIM, GROUP = 4 };

/* Queries i .. i + n, n <= GROUP, and what they see of the block; NULL: all of it. */
typedef struct group { uint32_t i; const uint32_t *lo, *hi; } group;

INLINE bool is_live(const group *g, int j) { return !g->lo || g->lo[j] < g->hi[j]; }

/* The next queries, up to GROUP of them. */
INLINE group next_group(const plp_attn *a, plp_seen seen, uint32_t i, uint32_t *n)
{
    *n = a->n_q - i < GROUP ? a->n_q - i : GROUP;
    return (group){ i, seen.lo ? seen.lo + i : NULL, seen.hi ? seen.hi + i : NULL };
}
INLINE bool is_blind(const group *g, uint32_t n)
{
    for (uint32_t j = 0; j < n; j++)
        if (is_live(g, (int)j)) return false;
    return true;
}

#endif
