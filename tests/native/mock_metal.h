/*
 * tests/native/mock_metal.h - an Objective-C runtime and a Metal that run here: dispatched kernels go to the emulator
 *
 * Objects are counted, selectors are looked up in a table (an unknown one ends the test), and work happens
 * when a command buffer is committed. A buffer is mapped twice: what the host writes through `contents` and
 * what kernels read at `gpuAddress` are different addresses, as on a Mac.
 */
#ifndef MOCK_METAL_H
#define MOCK_METAL_H

#include "backend/emu/emu.h"
#include "backend/gpu/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MOCK_API __attribute__((visibility("default"), used))

typedef struct mock {
    const char *cls;
    long        refs;
    void       *host, *gpu;             /* buffers */
    size_t      n;
    char       *text;                   /* strings, functions */
    int         kernel;                 /* functions, pipelines */
    plp_gpu_command *list;              /* command buffers: their own; encoders: their command buffer's, through parent */
    uint32_t    n_list, cap_list;
    struct mock *parent;
    bool        ended, committed, used;
} mock;
typedef struct { unsigned long w, h, d; } mock_size;

static long mock_live, mock_dispatched, mock_committed, mock_wrong;
static mock *mock_pool[1 << 16];        /* autoreleased */
static uint32_t mock_n_pool;

static mock *mock_new(const char *cls)
{
    mock *o = calloc(1, sizeof *o);
    o->cls = cls;
    o->refs = 1;
    mock_live++;
    return o;
}
static mock *mock_auto(mock *o) { mock_pool[mock_n_pool++] = o; return o; }
static void *mock_retain(mock *o, void *s) { o->refs++; return o; }
static void mock_release(mock *o, void *s)
{
    if (--o->refs)
        return;
    if (o->gpu && o->gpu != o->host) {
        munmap(o->host, o->n);
        munmap(o->gpu, o->n);
    }
    free(o->text);
    free(o->list);
    free(o);
    mock_live--;
}

MOCK_API void *sel_registerName(const char *name)
{
    static const char *names[256];
    static int n;
    for (int i = 0; i < n; i++)
        if (!strcmp(names[i], name))
            return (void *)names[i];
    return (void *)(names[n++] = name);
}
MOCK_API void *objc_getClass(const char *name)
{
    static mock classes[2] = { { .cls = "NSString class", .refs = 1 }, { .cls = "MTLCompileOptions class", .refs = 1 } };
    for (int i = 0; i < 2; i++)
        if (!strncmp(classes[i].cls, name, strlen(name)))
            return &classes[i];
    return NULL;
}
MOCK_API void *objc_autoreleasePoolPush(void) { return (void *)(uintptr_t)(mock_n_pool + 1); }
MOCK_API void objc_autoreleasePoolPop(void *pool)
{
    while (mock_n_pool + 1 > (uintptr_t)pool)
        mock_release(mock_pool[--mock_n_pool], NULL);
}
MOCK_API void *MTLCreateSystemDefaultDevice(void) { return mock_new("MTLDevice"); }

static void *mock_string(mock *o, void *s, const char *text) { mock *r = mock_auto(mock_new("NSString")); r->text = strdup(text); return r; }
static void *mock_options(mock *o, void *s) { return mock_new("MTLCompileOptions"); }
static void *mock_nothing(mock *o, void *s) { return NULL; }
static signed char mock_yes(mock *o, void *s) { return 1; }
static void *mock_library(mock *o, void *s, mock *source, mock *options, mock **err)
{
    return strstr(source->text, "metal_stdlib") && options ? mock_new("MTLLibrary") : NULL;
}
static void *mock_function(mock *o, void *s, mock *name)
{
    static const char *const names[] = {
#define GPU_KERNEL(name, args) "plp_k_" #name,
#include "backend/gpu/kernels/kernels.def"
#undef GPU_KERNEL
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(names[i], name->text)) {
            mock *f = mock_new("MTLFunction");
            f->kernel = (int)i;
            return f;
        }
    return NULL;
}
static void *mock_pipeline(mock *o, void *s, mock *f, mock **err) { mock *p = mock_new("MTLComputePipelineState"); p->kernel = f->kernel; return p; }
static void *mock_queue(mock *o, void *s) { return mock_new("MTLCommandQueue"); }
static void *mock_name(mock *o, void *s) { return mock_string(o, s, "a mock"); }
static void *mock_text(mock *o, void *s) { return o->text; }

static void *mock_buffer(mock *o, void *s, unsigned long n, unsigned long options)
{
    mock *b = mock_new("MTLBuffer");
    const int fd = memfd_create("buffer", 0);
    b->n = (n + 4095) / 4096 * 4096;
    if (fd < 0 || ftruncate(fd, (off_t)b->n))
        abort();
    b->host = mmap(NULL, b->n, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    b->gpu = mmap(NULL, b->n, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return b;
}
static void *mock_wrap(mock *o, void *s, void *bytes, unsigned long n, unsigned long options, void *deallocator)
{
    mock *b = mock_new("MTLBuffer");
    mock_wrong += (uintptr_t)bytes % 4096 || n % 4096;
    b->host = b->gpu = bytes;
    b->n = n;
    return b;
}
static void *mock_contents(mock *o, void *s) { return o->host; }
static uint64_t mock_address(mock *o, void *s) { return (uintptr_t)o->gpu; }

static void *mock_command_buffer(mock *o, void *s) { return mock_auto(mock_new("MTLCommandBuffer")); }
static void *mock_encoder(mock *o, void *s) { mock *e = mock_auto(mock_new("MTLComputeCommandEncoder")); e->parent = o; return e; }
static void mock_set_pipeline(mock *o, void *s, mock *p) { o->kernel = p->kernel + 1; }
static void mock_set_bytes(mock *o, void *s, const void *bytes, unsigned long n, unsigned long index)
{
    mock_wrong += index != 0 || n > 4096;
    free(o->text);
    o->text = malloc(n);
    memcpy(o->text, bytes, n);
    o->n = n;
}
static void mock_use(mock *o, void *s, mock *const *list, unsigned long n, unsigned long usage) { o->used = true; mock_wrong += usage != 3; }
static void mock_dispatch(mock *o, void *s, mock_size groups, mock_size threads)
{
    mock *b = o->parent;
    mock_wrong += !o->kernel || !o->used || o->ended || b->committed || threads.h != 1 || groups.d != 1;
    if (b->n_list == b->cap_list)
        b->list = realloc(b->list, (b->cap_list = b->cap_list * 2 + 64) * sizeof *b->list);
    plp_gpu_command *c = &b->list[b->n_list++];
    *c = (plp_gpu_command){ .kernel = (uint32_t)o->kernel - 1, .n_threads = (uint32_t)threads.w, .groups = { (uint32_t)groups.w, (uint32_t)groups.h } };
    memcpy(c->args, o->text, sizeof c->args);
    mock_dispatched++;
}
static void mock_end(mock *o, void *s) { o->ended = true; o->parent->ended = true; }
static void mock_commit(mock *o, void *s)
{
    char text[160];
    mock_wrong += !o->ended || o->committed;
    o->committed = true;
    mock_committed++;
    for (uint32_t i = 0; i < o->n_list; i++)
        if (!plp_simt_launch(plp_emu_kernels[o->list[i].kernel], o->list[i].args, o->list[i].groups, o->list[i].n_threads, 7 + i, text, sizeof text))
            mock_wrong++, printf("kernel %u: %s\n", o->list[i].kernel, text);
}
static void mock_wait(mock *o, void *s) { mock_wrong += !o->committed; }
static unsigned long mock_status(mock *o, void *s) { return o->committed ? 4 : 0; }

static const struct { const char *cls, *sel; void *imp; } mock_table[] = {
    { "NSString class", "stringWithUTF8String:", mock_string }, { "NSString", "UTF8String", mock_text },
    { "MTLCompileOptions class", "new", mock_options }, { "MTLCompileOptions", "setFastMathEnabled:", mock_nothing },
    { "MTLCompileOptions", "setLanguageVersion:", mock_nothing }, { "MTLDevice", "supportsFamily:", mock_yes }, { "MTLDevice", "name", mock_name },
    { "MTLDevice", "newLibraryWithSource:options:error:", mock_library }, { "MTLLibrary", "newFunctionWithName:", mock_function },
    { "MTLDevice", "newComputePipelineStateWithFunction:error:", mock_pipeline }, { "MTLDevice", "newCommandQueue", mock_queue },
    { "MTLDevice", "newBufferWithLength:options:", mock_buffer }, { "MTLDevice", "newBufferWithBytesNoCopy:length:options:deallocator:", mock_wrap },
    { "MTLBuffer", "contents", mock_contents }, { "MTLBuffer", "gpuAddress", mock_address },
    { "MTLCommandQueue", "commandBuffer", mock_command_buffer }, { "MTLCommandBuffer", "computeCommandEncoder", mock_encoder },
    { "MTLComputeCommandEncoder", "setComputePipelineState:", mock_set_pipeline }, { "MTLComputeCommandEncoder", "setBytes:length:atIndex:", mock_set_bytes },
    { "MTLComputeCommandEncoder", "useResources:count:usage:", mock_use }, { "MTLComputeCommandEncoder", "endEncoding", mock_end },
    { "MTLComputeCommandEncoder", "dispatchThreadgroups:threadsPerThreadgroup:", mock_dispatch },
    { "MTLCommandBuffer", "commit", mock_commit }, { "MTLCommandBuffer", "waitUntilCompleted", mock_wait }, { "MTLCommandBuffer", "status", mock_status },
};

MOCK_API void *mock_imp(mock *o, const char *sel)
{
    if (!o)
        return mock_nothing;
    if (!strcmp(sel, "retain"))
        return mock_retain;
    if (!strcmp(sel, "release"))
        return mock_release;
    for (size_t i = 0; i < sizeof mock_table / sizeof *mock_table; i++)
        if (!strcmp(mock_table[i].cls, o->cls) && !strcmp(mock_table[i].sel, sel))
            return mock_table[i].imp;
    printf("-[%s %s]: unrecognized selector\n", o->cls, sel);
    exit(1);
}

/* Look the method up, then go there with every argument as it came. */
#if defined __x86_64__
__asm__(".text\n.globl objc_msgSend\n.type objc_msgSend,@function\nobjc_msgSend:\n"
        "push %rdi\npush %rsi\npush %rdx\npush %rcx\npush %r8\npush %r9\nsub $8,%rsp\n"
        "call mock_imp@PLT\nmov %rax,%r11\nadd $8,%rsp\n"
        "pop %r9\npop %r8\npop %rcx\npop %rdx\npop %rsi\npop %rdi\njmp *%r11\n");
#elif defined __aarch64__
__asm__(".text\n.globl objc_msgSend\n.type objc_msgSend,%function\nobjc_msgSend:\n"
        "stp x29, x30, [sp, #-80]!\nstp x0, x1, [sp, #16]\nstp x2, x3, [sp, #32]\nstp x4, x5, [sp, #48]\nstp x6, x7, [sp, #64]\n"
        "bl mock_imp\nmov x9, x0\n"
        "ldp x0, x1, [sp, #16]\nldp x2, x3, [sp, #32]\nldp x4, x5, [sp, #48]\nldp x6, x7, [sp, #64]\nldp x29, x30, [sp], #80\nbr x9\n");
#endif

#endif
