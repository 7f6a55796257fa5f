/*
 * backend/emu/simt.c - fibers, their order, and the places where they meet
 *
 * A switch saves the callee-saved registers on the stack and changes the stack pointer: about 10 ns.
 * x86-64 and AArch64 have it in assembly; other machines use ucontext.
 *
 * Waiting is passing the turn to the next fiber in the order until the phase counter moves on. Who waits for
 * its simdgroup passes it, in every second group, only within the simdgroup: so one runs far ahead of the
 * others, and what it must not overtake shows; in the other groups all go abreast. When a whole
 * round of turns brings no arrival anywhere, those who wait do so for somebody who will never come. All who
 * meet must do so at the same site (source line, or mask of an exchange).
 */
#include "backend/emu/simt.h"
#include "base/mem.h"
#include "base/platform.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#if !defined __x86_64__ && !defined __aarch64__
#define USE_UCONTEXT 1
#include <ucontext.h>
#endif

#if defined __SANITIZE_ADDRESS__
#define ASAN 1
#elif defined __has_feature
#if __has_feature(address_sanitizer)
#define ASAN 1
#endif
#endif
#ifdef ASAN
void __sanitizer_start_switch_fiber(void **fake, const void *bottom, size_t n_bytes);
void __sanitizer_finish_switch_fiber(void *fake, const void **bottom, size_t *n_bytes);
#endif

enum { STACK_BYTES = 64 << 10, SIMD_WIDTH = 32, MAX_SIMDS = PLP_SIMT_MAX_THREADS / SIMD_WIDTH, SCHEDULER = -1 };

typedef struct fiber {
    void *stack;                /* STACK_BYTES, kept between launches */
#ifdef USE_UCONTEXT
    ucontext_t context;
#else
    void *sp;                   /* where its registers lie while it waits */
#endif
    void *fake;                 /* AddressSanitizer's */
} fiber;

typedef struct meeting {        /* of a simdgroup */
    uint32_t arrived, phase, site;
    uint32_t in[SIMD_WIDTH], out[SIMD_WIDTH];
} meeting;

plp_simt_state plp_simt;

static struct {
    fiber    fibers[PLP_SIMT_MAX_THREADS], scheduler;
    int      order[PLP_SIMT_MAX_THREADS], turn;
    int      place[PLP_SIMT_MAX_THREADS];       /* of a fiber in the order */
    int      mate[PLP_SIMT_MAX_THREADS];        /* the next of its simdgroup in the order */
    bool     ahead;                             /* simdgroups may run ahead */
    uint32_t arrived, phase, site, n_done, generation;
    uint64_t progress;          /* arrivals and ends */
    meeting  simds[MAX_SIMDS];
    plp_simt_body body;
    const void *args;
    const char *stuck;          /* at what; the launch is over */
    const void *main_bottom;
    size_t      main_bytes;
} st;

static atomic_flag busy = ATOMIC_FLAG_INIT;

/* ---- switching ---- */

#if defined __APPLE__
#define SYMBOL "_plp_simt_switch"
#else
#define SYMBOL "plp_simt_switch"
#endif

#ifdef USE_UCONTEXT
static void change(fiber *from, fiber *to) { swapcontext(&from->context, &to->context); }
static void prepare(fiber *f, void (*entry)(void))
{
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = f->stack;
    f->context.uc_stack.ss_size = STACK_BYTES;
    f->context.uc_link = NULL;
    makecontext(&f->context, entry, 0);
}
#else
void plp_simt_switch(void **save, void *to) __attribute__((visibility("hidden")));

static void change(fiber *from, fiber *to) { plp_simt_switch(&from->sp, to->sp); }

#if defined __x86_64__
__asm__(".text\n.globl " SYMBOL "\n" SYMBOL ":\n"
        "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
        "mov %rsp,(%rdi)\nmov %rsi,%rsp\n"
        "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n");

static void prepare(fiber *f, void (*entry)(void))
{
    void **sp = (void **)((char *)f->stack + STACK_BYTES);
    *--sp = NULL;               /* entry never returns; keeps the stack aligned as after a call */
    *--sp = (void *)entry;
    for (int i = 0; i < 6; i++)
        *--sp = NULL;
    f->sp = sp;
}
#else
__asm__(".text\n.globl " SYMBOL "\n.p2align 2\n" SYMBOL ":\n"
        "sub sp, sp, #160\n"
        "stp x19, x20, [sp]\nstp x21, x22, [sp, #16]\nstp x23, x24, [sp, #32]\nstp x25, x26, [sp, #48]\n"
        "stp x27, x28, [sp, #64]\nstp x29, x30, [sp, #80]\n"
        "stp d8, d9, [sp, #96]\nstp d10, d11, [sp, #112]\nstp d12, d13, [sp, #128]\nstp d14, d15, [sp, #144]\n"
        "mov x9, sp\nstr x9, [x0]\nmov sp, x1\n"
        "ldp x19, x20, [sp]\nldp x21, x22, [sp, #16]\nldp x23, x24, [sp, #32]\nldp x25, x26, [sp, #48]\n"
        "ldp x27, x28, [sp, #64]\nldp x29, x30, [sp, #80]\n"
        "ldp d8, d9, [sp, #96]\nldp d10, d11, [sp, #112]\nldp d12, d13, [sp, #128]\nldp d14, d15, [sp, #144]\n"
        "add sp, sp, #160\nret\n");

static void prepare(fiber *f, void (*entry)(void))
{
    void **sp = (void **)((char *)f->stack + STACK_BYTES) - 20;
    memset(sp, 0, 160);
    sp[11] = (void *)entry;     /* x30 */
    f->sp = sp;
}
#endif
#endif

static fiber *fiber_at(int i) { return i == SCHEDULER ? &st.scheduler : &st.fibers[i]; }

static void go(int to)
{
    fiber *from = fiber_at(plp_simt.thread), *next = fiber_at(to);
    plp_simt.thread = to;
#ifdef ASAN
    __sanitizer_start_switch_fiber(&from->fake, to == SCHEDULER ? st.main_bottom : next->stack, to == SCHEDULER ? st.main_bytes : STACK_BYTES);
#endif
    change(from, next);
#ifdef ASAN
    __sanitizer_finish_switch_fiber(from->fake, NULL, NULL);
#endif
}

static void pass_turn(void)
{
    st.turn = st.turn + 1 == plp_simt.n_threads ? 0 : st.turn + 1;
    if (st.order[st.turn] != plp_simt.thread)
        go(st.order[st.turn]);
}

static void pass_turn_in_simd(void)
{
    const int next = st.mate[plp_simt.thread];
    st.turn = st.place[next];
    if (next != plp_simt.thread)
        go(next);
}

/* The launch is given up: back to the scheduler, never to return. */
static void give_up(const char *at)
{
    st.stuck = at;
    for (;;)
        go(SCHEDULER);
}

static void entry(void)
{
#ifdef ASAN
    const void *bottom;
    size_t n_bytes;
    __sanitizer_finish_switch_fiber(NULL, &bottom, &n_bytes);
    if (!st.main_bottom) {      /* the first fiber of a launch comes from the scheduler */
        st.main_bottom = bottom;
        st.main_bytes = n_bytes;
    }
#endif
    for (;;) {
        const uint32_t generation = st.generation;
        st.body(st.args);
        st.progress++;
        if (++st.n_done == (uint32_t)plp_simt.n_threads)
            go(SCHEDULER);
        while (generation == st.generation)
            pass_turn();
    }
}

/* ---- meeting ---- */

/* Let others run until *phase is no longer `old`. */
static void wait_for(const uint32_t *phase, uint32_t old, void (*pass)(void), const char *at)
{
    uint64_t seen = st.progress;
    for (int turns = 0; *phase == old; turns++) {
        if (seen != st.progress) {
            seen = st.progress;
            turns = 0;
        } else if (turns > plp_simt.n_threads) {
            give_up(at);
        }
        pass();
    }
}

void plp_simt_barrier(uint32_t site)
{
    const uint32_t phase = st.phase;
    if (st.n_done || (st.arrived && st.site != site))
        give_up("the same barrier");
    st.site = site;
    st.progress++;
    if (++st.arrived == (uint32_t)plp_simt.n_threads) {
        st.arrived = 0;
        st.phase++;
        return;
    }
    wait_for(&st.phase, phase, pass_turn, "a barrier");
}

/* `out` is safe until the next meeting, to which everybody comes after reading it. */
static const meeting *meet(uint32_t value, uint32_t site)
{
    meeting *m = &st.simds[plp_simt.thread / SIMD_WIDTH];
    const uint32_t phase = m->phase;
    if (m->arrived && m->site != site)
        give_up("the same simdgroup operation");
    m->in[plp_simt.thread % SIMD_WIDTH] = value;
    m->site = site;
    st.progress++;
    if (++m->arrived == SIMD_WIDTH) {
        m->arrived = 0;
        memcpy(m->out, m->in, sizeof m->in);
        m->phase++;
    } else {
        wait_for(&m->phase, phase, st.ahead ? pass_turn_in_simd : pass_turn, "a simdgroup operation");
    }
    return m;
}

void plp_simt_barrier_simd(uint32_t site) { meet(0, site + SIMD_WIDTH); }

uint32_t plp_simt_xor(uint32_t value, uint32_t mask)
{
    const meeting *m = meet(value, mask);
    return m->out[(plp_simt.thread % SIMD_WIDTH) ^ mask];
}

/* ---- launch ---- */

static bool make_stacks(uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (!st.fibers[i].stack && !(st.fibers[i].stack = plp_pages_map(STACK_BYTES)))
            return false;
    return true;
}

static void shuffle(uint32_t *seed, uint32_t n)
{
    for (uint32_t i = n - 1; i > 0; i--) {
        *seed = *seed * 1664525u + 1013904223u;
        const uint32_t j = (*seed >> 8) % (i + 1);
        const int t = st.order[i];
        st.order[i] = st.order[j];
        st.order[j] = t;
    }
}

/* Where each fiber stands, and its next of the same simdgroup. */
static void link_mates(uint32_t n)
{
    int last[MAX_SIMDS], first[MAX_SIMDS];
    for (uint32_t i = 0; i < n / SIMD_WIDTH; i++)
        last[i] = -1;
    for (uint32_t i = 0; i < n; i++) {
        const int f = st.order[i], simd = f / SIMD_WIDTH;
        st.place[f] = (int)i;
        if (last[simd] < 0)
            first[simd] = f;
        else
            st.mate[last[simd]] = f;
        last[simd] = f;
    }
    for (uint32_t i = 0; i < n / SIMD_WIDTH; i++)
        st.mate[last[i]] = first[i];
}

static bool run(const uint32_t groups[2], uint32_t n_threads, uint32_t seed)
{
    for (uint32_t i = 0; i < n_threads; i++) {
        st.order[i] = (int)i;
        prepare(&st.fibers[i], entry);
        st.fibers[i].fake = NULL;
    }
    link_mates(n_threads);
    st.ahead = seed & 1;
    for (plp_simt.group[1] = 0; plp_simt.group[1] < groups[1]; plp_simt.group[1]++)
        for (plp_simt.group[0] = 0; plp_simt.group[0] < groups[0]; plp_simt.group[0]++) {
            if (seed) {
                shuffle(&seed, n_threads);
                link_mates(n_threads);
                st.ahead = !st.ahead;
            }
            st.arrived = st.n_done = 0;
            st.turn = 0;
            memset(st.simds, 0, (n_threads / SIMD_WIDTH) * sizeof *st.simds);
            st.generation++;
            go(st.order[0]);
            if (st.stuck)
                return false;
        }
    return true;
}

bool plp_simt_launch(plp_simt_body body, const void *args, const uint32_t groups[2], uint32_t n_threads,
                     uint32_t seed, char *error, size_t error_bytes)
{
    bool done = false;

    while (atomic_flag_test_and_set_explicit(&busy, memory_order_acquire)) { }
    if (n_threads == 0 || n_threads > PLP_SIMT_MAX_THREADS || n_threads % SIMD_WIDTH) {
        snprintf(error, error_bytes, "%u threads in a group; multiples of 32 up to %d are possible", n_threads, PLP_SIMT_MAX_THREADS);
    } else if (!make_stacks(n_threads)) {
        snprintf(error, error_bytes, "no memory for %u stacks", n_threads);
    } else {
        plp_simt.n_threads = (int)n_threads;
        plp_simt.thread = SCHEDULER;
        st.body = body;
        st.args = args;
        st.stuck = NULL;
        st.main_bottom = NULL;
        if (!(done = run(groups, n_threads, seed)))
            snprintf(error, error_bytes, "group (%u, %u): not all threads came to %s", plp_simt.group[0], plp_simt.group[1], st.stuck);
    }
    atomic_flag_clear_explicit(&busy, memory_order_release);
    return done;
}
