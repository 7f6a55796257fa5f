/*
 * backend/metal/metal.c - the Metal device: one queue, one command buffer a list, shared memory
 *
 *   memory     shared buffers; kernels get gpuAddress, the host writes through contents. Weights are the
 *              mapped file's own pages
 *   a list     one command buffer, one serial encoder; arguments by setBytes, so nothing is bound. As nothing
 *              is bound, every buffer is declared as used
 *   kernels    compiled from the embedded source when the device opens, without fast math; pipelines when
 *              they are first needed (the system keeps them across runs)
 *
 * Threads  one caller at a time, any thread: each entry has its own autorelease pool
 * Errors   the first failure is kept and said by every wait
 */
#include "backend/metal/metal.h"
#include "backend/gpu/device.h"
#include "base/mem.h"
#include "base/platform.h"
#include "metal_source.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

typedef void *id;
typedef void *SEL;
typedef unsigned long NSUInteger;
typedef struct { NSUInteger width, height, depth; } MTLSize;

enum { FAMILY_METAL_3 = 5001, LANGUAGE_3_0 = 3 << 16, STORAGE_SHARED = 0, USAGE_READ_WRITE = 3, STATUS_ERROR = 5 };

const char *plp_metal_objc_path = "/usr/lib/libobjc.A.dylib";
const char *plp_metal_framework_path = "/System/Library/Frameworks/Metal.framework/Metal";

static const char *const names[] = {
#define GPU_KERNEL(name, args) "plp_k_" #name,
#include "backend/gpu/kernels/kernels.def"
#undef GPU_KERNEL
};
enum { N_KERNELS = sizeof names / sizeof *names };

/* ---- the runtime ---- */

static struct {
    id    (*get_class)(const char *name);
    SEL   (*sel)(const char *name);
    void  (*send)(void);
    void *(*pool_push)(void);
    void  (*pool_pop)(void *pool);
    id    (*default_device)(void);
} rt;

#define SEND(result, object, selector) ((result (*)(id, SEL))rt.send)(object, rt.sel(selector))
#define SEND_(types, object, selector, ...) ((types)rt.send)(object, rt.sel(selector), __VA_ARGS__)

/* dlopen keeps count; loading twice is harmless. */
static bool load(char *why, size_t n_bytes)
{
    void *objc = dlopen(plp_metal_objc_path, RTLD_LAZY | RTLD_GLOBAL), *metal = objc ? dlopen(plp_metal_framework_path, RTLD_LAZY | RTLD_GLOBAL) : NULL;
    if (!objc || !metal) {
        snprintf(why, n_bytes, "this system has no Metal");
        return false;
    }
    rt.get_class = (id (*)(const char *))dlsym(objc, "objc_getClass");
    rt.sel = (SEL (*)(const char *))dlsym(objc, "sel_registerName");
    rt.send = (void (*)(void))dlsym(objc, "objc_msgSend");
    rt.pool_push = (void *(*)(void))dlsym(objc, "objc_autoreleasePoolPush");
    rt.pool_pop = (void (*)(void *))dlsym(objc, "objc_autoreleasePoolPop");
    rt.default_device = (id (*)(void))dlsym(metal, "MTLCreateSystemDefaultDevice");
    if (rt.get_class && rt.sel && rt.send && rt.pool_push && rt.pool_pop && rt.default_device)
        return true;
    snprintf(why, n_bytes, "this system's Metal is not one that this build knows");
    return false;
}

static void release_object(id o)
{
    if (o)
        SEND(void, o, "release");
}

static id string_of(const char *s) { return SEND_(id (*)(id, SEL, const char *), rt.get_class("NSString"), "stringWithUTF8String:", s); }

/* Of an NSError. */
static const char *reason(id error)
{
    const id text = error ? SEND(id, error, "localizedDescription") : NULL;
    const char *s = text ? SEND(const char *, text, "UTF8String") : NULL;
    return s ? s : "no reason given";
}

/* ---- the device ---- */

typedef struct region { id buffer; uintptr_t address; char *host; size_t n_bytes; } region;

typedef struct metal {
    plp_gpu_device base;
    id             device, queue, library, last;        /* last: the command buffer committed last */
    id             pipelines[N_KERNELS];
    region        *regions;                             /* [n_regions] */
    id            *resources;                           /* their buffers, for the encoder */
    uint32_t       n_regions, cap_regions;
    void          *staging;
    size_t         staging_bytes;
    plp_error      failure;
} metal;

static bool room_for_region(metal *m)
{
    if (m->n_regions < m->cap_regions)
        return true;
    const uint32_t cap = m->cap_regions * 2 + 64;
    region *regions = plp_resize(PLP_MEM_OTHER, m->regions, cap, sizeof *regions);
    if (regions)
        m->regions = regions;
    id *resources = plp_resize(PLP_MEM_OTHER, m->resources, cap, sizeof *resources);
    if (resources)
        m->resources = resources;
    if (!regions || !resources)
        return false;
    m->cap_regions = cap;
    return true;
}

/* Takes over a new buffer; its device address. */
static uintptr_t add_region(metal *m, id buffer, size_t n_bytes)
{
    const region r = { buffer, (uintptr_t)SEND(uint64_t, buffer, "gpuAddress"), SEND(void *, buffer, "contents"), n_bytes };
    m->resources[m->n_regions] = buffer;
    m->regions[m->n_regions++] = r;
    return r.address;
}

static char *host_of(const metal *m, const void *address, size_t n_bytes)
{
    for (uint32_t i = 0; i < m->n_regions; i++) {
        const region *r = &m->regions[i];
        if ((uintptr_t)address >= r->address && (uintptr_t)address + n_bytes <= r->address + r->n_bytes)
            return r->host + ((uintptr_t)address - r->address);
    }
    return NULL;
}

static plp_status memory(plp_gpu_device *d, size_t n_bytes, void **out, plp_error *err)
{
    metal *m = (metal *)d;
    id buffer = room_for_region(m) ? SEND_(id (*)(id, SEL, NSUInteger, NSUInteger), m->device, "newBufferWithLength:options:", n_bytes, STORAGE_SHARED) : NULL;
    if (!buffer)
        return plp_fail(err, PLP_E_NOMEM, "device \"metal\": %zu bytes refused", n_bytes);
    *out = (void *)add_region(m, buffer, n_bytes);
    return PLP_OK;
}

static void release(plp_gpu_device *d, void *address, size_t n_bytes)
{
    metal *m = (metal *)d;
    for (uint32_t i = 0; i < m->n_regions; i++)
        if (m->regions[i].address == (uintptr_t)address) {
            release_object(m->regions[i].buffer);
            m->regions[i] = m->regions[--m->n_regions];
            m->resources[i] = m->resources[m->n_regions];
            return;
        }
}

static plp_status staging(plp_gpu_device *d, size_t n_bytes, void **host, void **address, plp_error *err)
{
    metal *m = (metal *)d;
    void *at;
    const plp_status s = memory(d, n_bytes, &at, err);
    if (s < 0)
        return s;
    if (m->staging)
        release(d, m->staging, m->staging_bytes);
    m->staging = *address = at;
    m->staging_bytes = n_bytes;
    *host = host_of(m, at, n_bytes);
    return PLP_OK;
}

/* The whole pages around a tensor of a mapped file. */
static void *weights(plp_gpu_device *d, const void *host, size_t n_bytes)
{
    metal *m = (metal *)d;
    const uintptr_t page = plp_page_bytes(), start = (uintptr_t)host / page * page, end = ((uintptr_t)host + n_bytes + page - 1) / page * page;

    if ((uintptr_t)host % 4 || !room_for_region(m))
        return NULL;
    void *pool = rt.pool_push();
    id buffer = SEND_(id (*)(id, SEL, void *, NSUInteger, NSUInteger, id), m->device, "newBufferWithBytesNoCopy:length:options:deallocator:",
                      (void *)start, end - start, STORAGE_SHARED, NULL);
    void *at = buffer ? (char *)add_region(m, buffer, end - start) + ((uintptr_t)host - start) : NULL;
    rt.pool_pop(pool);
    return at;
}

static void put(plp_gpu_device *d, void *address, const void *host, size_t n_bytes)
{
    char *to = host_of((metal *)d, address, n_bytes);
    if (to)
        memcpy(to, host, n_bytes);
}

static void get(plp_gpu_device *d, void *host, const void *address, size_t n_bytes)
{
    const char *from = host_of((metal *)d, address, n_bytes);
    if (from)
        memcpy(host, from, n_bytes);
    else
        memset(host, 0xff, n_bytes);
}

/* ---- lists ---- */

static id pipeline(metal *m, uint32_t kernel)
{
    id error = NULL, function;

    if (m->pipelines[kernel])
        return m->pipelines[kernel];
    function = SEND_(id (*)(id, SEL, id), m->library, "newFunctionWithName:", string_of(names[kernel]));
    if (function)
        m->pipelines[kernel] = SEND_(id (*)(id, SEL, id, id *), m->device, "newComputePipelineStateWithFunction:error:", function, &error);
    if (!m->pipelines[kernel] && m->failure.status >= 0)
        plp_fail(&m->failure, PLP_E_UNSUPPORTED, "device \"metal\": kernel %s: %.200s", names[kernel], reason(error));
    release_object(function);
    return m->pipelines[kernel];
}

static void run(plp_gpu_device *d, const plp_gpu_command *list, uint32_t n, size_t n_staged)
{
    metal *m = (metal *)d;
    void *pool = rt.pool_push();
    const id buffer = SEND(id, m->queue, "commandBuffer"), encoder = buffer ? SEND(id, buffer, "computeCommandEncoder") : NULL;

    if (!encoder && m->failure.status >= 0)
        plp_fail(&m->failure, PLP_E_NOMEM, "device \"metal\": no command buffer");
    if (encoder) {
        SEND_(void (*)(id, SEL, const id *, NSUInteger, NSUInteger), encoder, "useResources:count:usage:", m->resources, m->n_regions, USAGE_READ_WRITE);
        for (uint32_t i = 0; i < n && m->failure.status >= 0; i++) {
            const id p = pipeline(m, list[i].kernel);
            if (!p)
                break;
            SEND_(void (*)(id, SEL, id), encoder, "setComputePipelineState:", p);
            SEND_(void (*)(id, SEL, const void *, NSUInteger, NSUInteger), encoder, "setBytes:length:atIndex:", list[i].args, sizeof list[i].args, 0);
            SEND_(void (*)(id, SEL, MTLSize, MTLSize), encoder, "dispatchThreadgroups:threadsPerThreadgroup:",
                  ((MTLSize){ list[i].groups[0], list[i].groups[1], 1 }), ((MTLSize){ list[i].n_threads, 1, 1 }));
        }
        SEND(void, encoder, "endEncoding");
        SEND(void, buffer, "commit");
        release_object(m->last);
        m->last = SEND(id, buffer, "retain");
    }
    rt.pool_pop(pool);
}

/* The queue runs in order: the last one's end is everybody's. */
static plp_status wait_done(plp_gpu_device *d, plp_error *err)
{
    metal *m = (metal *)d;
    if (m->last) {
        void *pool = rt.pool_push();
        SEND(void, m->last, "waitUntilCompleted");
        if (SEND(NSUInteger, m->last, "status") == STATUS_ERROR && m->failure.status >= 0)
            plp_fail(&m->failure, PLP_E_UNSUPPORTED, "device \"metal\": %.300s", reason(SEND(id, m->last, "error")));
        release_object(m->last);
        m->last = NULL;
        rt.pool_pop(pool);
    }
    if (m->failure.status < 0 && err)
        *err = m->failure;
    return m->failure.status;
}

/* ---- open and close ---- */

static void metal_close(plp_gpu_device *d)
{
    metal *m = (metal *)d;
    void *pool = rt.pool_push();
    wait_done(d, NULL);
    while (m->n_regions)
        release_object(m->regions[--m->n_regions].buffer);
    for (int i = 0; i < N_KERNELS; i++)
        release_object(m->pipelines[i]);
    release_object(m->library);
    release_object(m->queue);
    release_object(m->device);
    rt.pool_pop(pool);
    plp_free(m->regions);
    plp_free(m->resources);
    plp_free(m);
}

static const plp_gpu_driver driver = {
    .name = "metal", .close = metal_close, .memory = memory, .release = release, .staging = staging, .weights = weights,
    .run = run, .wait = wait_done, .write = put, .read = get,
};

static plp_status compile(metal *m, plp_error *err)
{
    id error = NULL, options = SEND(id, rt.get_class("MTLCompileOptions"), "new");

    SEND_(void (*)(id, SEL, signed char), options, "setFastMathEnabled:", 0);
    SEND_(void (*)(id, SEL, NSUInteger), options, "setLanguageVersion:", LANGUAGE_3_0);
    m->library = SEND_(id (*)(id, SEL, id, id, id *), m->device, "newLibraryWithSource:options:error:", string_of(plp_metal_source), options, &error);
    release_object(options);
    return m->library ? PLP_OK : plp_fail(err, PLP_E_UNSUPPORTED, "device \"metal\": its compiler refuses the kernels: %.300s", reason(error));
}

static plp_status open_parts(metal *m, plp_error *err)
{
    if (!(m->device = rt.default_device()))
        return plp_fail(err, PLP_E_UNSUPPORTED, "device \"metal\": no GPU");
    if (!SEND_(signed char (*)(id, SEL, long), m->device, "supportsFamily:", FAMILY_METAL_3))
        return plp_fail(err, PLP_E_UNSUPPORTED, "device \"metal\": this GPU or system is older than Metal 3 (macOS 13, Apple silicon)");
    if (!(m->queue = SEND(id, m->device, "newCommandQueue")))
        return plp_fail(err, PLP_E_NOMEM, "device \"metal\": no command queue");
    return compile(m, err);
}

plp_status plp_metal_backend_open(plp_backend **out, plp_error *err)
{
    char why[160];
    if (!load(why, sizeof why))
        return plp_fail(err, PLP_E_UNSUPPORTED, "device \"metal\": %s", why);
    metal *m = plp_zalloc(PLP_MEM_OTHER, 1, sizeof *m);
    if (!m)
        return plp_fail(err, PLP_E_NOMEM, "device \"metal\": no memory");
    m->base.driver = &driver;
    void *pool = rt.pool_push();
    const plp_status s = open_parts(m, err);
    rt.pool_pop(pool);
    if (s < 0) {
        metal_close(&m->base);
        return s;
    }
    return plp_gpu_backend_open(out, &m->base, err);
}

bool plp_metal_describe(char *out, size_t n_bytes)
{
    if (!load(out, n_bytes))
        return false;
    void *pool = rt.pool_push();
    id device = rt.default_device();
    const id name = device ? SEND(id, device, "name") : NULL;
    const char *text = name ? SEND(const char *, name, "UTF8String") : NULL;
    snprintf(out, n_bytes, "%s", text ? text : device ? "a GPU without a name" : "no GPU");
    release_object(device);
    rt.pool_pop(pool);
    return device != NULL;
}
