/* What all kernels share: vector clones, flush-to-zero, and names by type.
 *
 * A source NAME.c includes its body twice, once for each type:
 *
 *     #define REAL float
 *     #define NAMED(name) name##_f32
 *     #include "NAME.h"
 *
 * Public functions take pointers, int64_t sizes and doubles, return nothing, and are marked LDR_API. The arrays
 * are contiguous, and outputs overlap nothing. Their callers hold no lock: see library.py.
 */
#ifndef TORCHLDR_COMMON_H
#define TORCHLDR_COMMON_H

#include <stdint.h>

#if defined(_MSC_VER)
#define LDR_API __declspec(dllexport)
#define LDR_INLINE static __forceinline
#else
#define LDR_API __attribute__((visibility("default")))
#define LDR_INLINE static inline __attribute__((always_inline))
#endif

/* One function compiled for several instruction sets, chosen when the library is loaded. */
#if defined(__x86_64__) && defined(__GLIBC__) && __GNUC__ >= 12 && !defined(__clang__) && !defined(LDR_NO_CLONES)
#define LDR_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define LDR_CLONES
#endif

/* Denormal numbers slow a loop down a hundred times: they become zero inside of kernels. */
#if defined(__x86_64__) || defined(_M_X64)
#include <xmmintrin.h>
typedef unsigned int ldr_mode;
LDR_INLINE ldr_mode ldr_flush(void)
{
    ldr_mode before = _mm_getcsr();
    _mm_setcsr(before | 0x8040u);
    return before;
}
LDR_INLINE void ldr_restore(ldr_mode before) { _mm_setcsr(before); }
#elif defined(__aarch64__) && !defined(_MSC_VER)
typedef uint64_t ldr_mode;
LDR_INLINE ldr_mode ldr_flush(void)
{
    ldr_mode before;
    __asm__ __volatile__("mrs %0, fpcr" : "=r"(before));
    __asm__ __volatile__("msr fpcr, %0" : : "r"(before | (UINT64_C(1) << 24)));
    return before;
}
LDR_INLINE void ldr_restore(ldr_mode before) { __asm__ __volatile__("msr fpcr, %0" : : "r"(before)); }
#else
typedef int ldr_mode;
LDR_INLINE ldr_mode ldr_flush(void) { return 0; }
LDR_INLINE void ldr_restore(ldr_mode before) { (void)before; }
#endif

#endif
