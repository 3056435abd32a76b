// The vector type of the instruction set this library is compiled for, and functions built on it.
#pragma once

#define LMK_INLINE inline __attribute__((always_inline))

#if defined(__AVX512F__)
#include "simd_avx512.h"
#else
#include "simd_avx2.h"
#endif

namespace lmk {

constexpr float kLog2E = 1.44269504f;

inline Floats exp(Floats x) { return exp2(mul(x, broadcast(kLog2E))); }

inline Floats sigmoid(Floats x) {
    const Floats bounded = max(x, broadcast(-80.0f));  // so that the exponential stays finite
    return reciprocal(add(broadcast(1.0f), exp2(mul(bounded, broadcast(-kLog2E)))));
}

// 1 - 2 / (exp(2 x) + 1), absolute error under 2e-7.
inline Floats tanh(Floats x) {
    const Floats bounded = max(min(x, broadcast(20.0f)), broadcast(-20.0f));
    const Floats e = exp2(mul(bounded, broadcast(2.0f * kLog2E)));
    return fma(broadcast(-2.0f), reciprocal(add(e, broadcast(1.0f))), broadcast(1.0f));
}

// Abramowitz and Stegun, 7.1.26: absolute error under 2e-7.
inline Floats erf(Floats x) {
    const Floats a = absolute(x);
    const Floats t = reciprocal(fma(min(a, broadcast(20.0f)), broadcast(0.3275911f), broadcast(1.0f)));
    Floats p = broadcast(1.061405429f);
    p = fma(p, t, broadcast(-1.453152027f));
    p = fma(p, t, broadcast(1.421413741f));
    p = fma(p, t, broadcast(-0.284496736f));
    p = fma(p, t, broadcast(0.254829592f));
    const Floats tail = mul(mul(p, t), exp(sub(zero(), mul(a, a))));
    return copy_sign(sub(broadcast(1.0f), tail), x);
}

// `asm`, because GCC 12 drops the calls of an inline function that holds nothing but _mm_prefetch.
// Into the second level, dropped when its queue is full.
LMK_INLINE void prefetch(const char* p) { asm volatile("prefetcht1 %0" ::"m"(*p)); }
// Into the first level; waits for a place in its queue.
LMK_INLINE void prefetch_near(const char* p) { asm volatile("prefetcht0 %0" ::"m"(*p)); }

LMK_INLINE void prefetch_write(const void* p) { __builtin_prefetch(p, 1); }

// `index` again, some six cycles later: paces fetches, which are dropped when they come in bursts.
LMK_INLINE size_t delayed(size_t index) {
    asm("imul %1, %0\n\timul %1, %0" : "+r"(index) : "r"(size_t{1}));
    return index;
}

}  // namespace lmk
