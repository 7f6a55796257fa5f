/* backend/gpu/kernels/attention_sizes.h - the kernels of one format F (attention.h) */
#define Q_N   1u
#define D_MAX 64u
#define NAME  CAT(CAT(attention_, F), _64_1)
#include "backend/gpu/kernels/attention_body.h"
#undef NAME
#undef D_MAX
#define D_MAX 128u
#define NAME  CAT(CAT(attention_, F), _128_1)
#include "backend/gpu/kernels/attention_body.h"
#undef NAME
#undef D_MAX
#define D_MAX 256u
#define NAME  CAT(CAT(attention_, F), _256_1)
#include "backend/gpu/kernels/attention_body.h"
#undef NAME
#undef D_MAX
#undef Q_N
#define Q_N   4u
#define D_MAX 64u
#define NAME  CAT(CAT(attention_, F), _64_4)
#include "backend/gpu/kernels/attention_body.h"
#undef NAME
#undef D_MAX
#define D_MAX 128u
#define NAME  CAT(CAT(attention_, F), _128_4)
#include "backend/gpu/kernels/attention_body.h"
#undef NAME
#undef D_MAX
#define D_MAX 256u
#define NAME  CAT(CAT(attention_, F), _256_4)
#include "backend/gpu/kernels/attention_body.h"
#undef NAME
#undef D_MAX
#undef Q_N
