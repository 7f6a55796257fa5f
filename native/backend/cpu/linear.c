/*
 * backend/cpu/linear.c - products of weight matrices with a batch of activations
 *
 * Activations are quantised and packed once for all matrices that share them (q, k and v; gate and up),
 * then the rows of all matrices are one list of pieces. Each thread walks a range of it, so that it reads
 * memory as one stream, and then helps the others: a slow core does less. Pieces are whole multiples of
 * the kernels' tiles.
 */
#include "backend/cpu/cpu.h"

enum { MAX_PRODUCTS = 4, PACK_PIECE = 16 };

typedef struct job {
    plp_cpu           *c;
    const plp_product *p;
    uint32_t           n, n_tok, k, piece_rows;
    uint32_t           end[MAX_PRODUCTS];       /* pieces up to and including matrix i */
    const float       *x;
    size_t             ldx;
    bool               integer;
} job;

static void pack(const job *j, uint32_t t0, uint32_t t1)
{
    j->c->k->x_pack(j->x, j->ldx, j->n_tok, j->k, t0, t1, j->c->packed);
}

static void pack_pieces(void *arg, uint32_t id, uint32_t n_threads)
{
    const job *j = arg;
    for (uint32_t t; (t = plp_team_next(j->c->team) * PACK_PIECE) < j->n_tok; )
        pack(j, t, t + PACK_PIECE < j->n_tok ? t + PACK_PIECE : j->n_tok);
}

static void multiply(void *arg, uint32_t id, uint32_t n_threads)
{
    const job *j = arg;
    const plp_kernels *k = j->c->k;
    void *work = plp_cpu_work(j->c, id);

    for (uint32_t piece; (piece = plp_team_take(j->c->team, id, j->end[j->n - 1])) != UINT32_MAX; ) {
        uint32_t i = 0;
        while (piece >= j->end[i])
            i++;
        const plp_product *p = &j->p[i];
        const plp_rows rows = { p->w->data, p->w->row_bytes, p->w->type, p->w->k };
        const uint32_t r0 = (piece - (i ? j->end[i - 1] : 0)) * j->piece_rows;
        const uint32_t r1 = r0 + j->piece_rows < p->w->rows ? r0 + j->piece_rows : p->w->rows;
        if (j->integer)
            k->linear(&rows, r0, r1, j->c->packed, j->n_tok, p->y, p->ldy, p->add, work);
        else
            k->linear_f(&rows, r0, r1, j->x, j->ldx, j->n_tok, p->y, p->ldy, p->add, work);
        if (p->bias)
            for (uint32_t t = 0; t < j->n_tok; t++)
                k->add(p->y + t * p->ldy + r0, p->bias + r0, r1 - r0);
    }
}

/* Few tokens: rows are streamed, in pieces long enough for that and short enough to balance. Many: they are unpacked into
 * panels, which are cut nowhere; a dozen pieces a thread where there are so many, since at the end a thread may wait for
 * the other's last one. */
static uint32_t rows_a_piece(uint32_t rows, uint32_t n_tok, uint32_t n_threads, uint32_t panel)
{
    enum { STREAMED_TOKENS = 12, STREAMED = 4 * PLP_ROW_STEP, MOST = 6 * PLP_ROW_STEP, PIECES = 12 };
    if (n_tok < STREAMED_TOKENS)
        return STREAMED;
    const uint32_t share = rows / (n_threads * PIECES);
    return share >= MOST ? MOST : share < panel ? panel : share / panel * panel;
}

static void run(plp_cpu *c, const plp_product *p, uint32_t n, const float *x, size_t ldx, uint32_t n_tok, bool integer)
{
    job j = { .c = c, .p = p, .n = n, .n_tok = n_tok, .k = p->w->k, .x = x, .ldx = ldx, .integer = integer };
    uint64_t rows = 0;

    for (uint32_t i = 0; i < n; i++)
        rows += p[i].w->rows;
    j.piece_rows = rows_a_piece((uint32_t)rows, n_tok, plp_team_size(c->team), c->k->panel_rows);
    for (uint32_t i = 0, pieces = 0; i < n; i++)
        j.end[i] = pieces += (p[i].w->rows + j.piece_rows - 1) / j.piece_rows;
    if (integer) {
        if (n_tok <= PACK_PIECE)
            pack(&j, 0, n_tok);
        else
            plp_team_run(c->team, pack_pieces, &j);
    }
    plp_team_run(c->team, multiply, &j);
}

static bool is_integer(const plp_weight *w) { return plp_type_get(w->type)->form != PLP_FORM_FLT; }

void plp_cpu_linear(plp_backend *b, const plp_product *p, uint32_t n, const float *x, size_t ldx, uint32_t n_tok)
{
    /* A run of matrices of one kind shares its packed activations; mixed kinds are separate runs. */
    for (uint32_t i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && end - i < MAX_PRODUCTS && is_integer(p[end].w) == is_integer(p[i].w); end++) {}
        run((plp_cpu *)b, p + i, end - i, x, ldx, n_tok, is_integer(p[i].w));
    }
}
