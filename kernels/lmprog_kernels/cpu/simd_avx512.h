// Sixteen float lanes on AVX-512 (F, BW, VL, DQ). The same names exist for AVX2; kernels use nothing else.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace lmk {

using Floats = __m512;
using Bits = __m512i;
constexpr int kLanes = 16;

inline Floats zero() { return _mm512_setzero_ps(); }
inline Floats broadcast(float x) { return _mm512_set1_ps(x); }
inline Floats load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, Floats x) { _mm512_storeu_ps(p, x); }
inline Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
inline Floats sub(Floats a, Floats b) { return _mm512_sub_ps(a, b); }
inline Floats mul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
inline Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
inline Floats max(Floats a, Floats b) { return _mm512_max_ps(a, b); }
inline Floats min(Floats a, Floats b) { return _mm512_min_ps(a, b); }
inline Floats div(Floats a, Floats b) { return _mm512_div_ps(a, b); }
// Bit i: lane i is not a number.
inline uint32_t nans(Floats a) { return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q); }
// Bit i: lane i of a is at least that of b.
inline uint32_t at_least(Floats a, Floats b) { return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ); }
// x where it is at least `bound`, else 0.
inline Floats keep_at_least(Floats x, Floats bound) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, bound, _CMP_GE_OQ), x);
}
// 1 / a, relative error under 2e-7; a must be finite.
inline Floats reciprocal(Floats a) {
    const Floats r = _mm512_rcp14_ps(a);
    return mul(r, _mm512_fnmadd_ps(a, r, _mm512_set1_ps(2.0f)));
}
inline Floats absolute(Floats a) { return _mm512_abs_ps(a); }
inline float sum(Floats a) { return _mm512_reduce_add_ps(a); }
inline float maximum(Floats a) { return _mm512_reduce_max_ps(a); }

// A sum of many floats in double precision.
struct DoubleSum {
    __m512d low = _mm512_setzero_pd(), high = _mm512_setzero_pd();
    LMK_INLINE void add(Floats x) {
        low = _mm512_add_pd(low, _mm512_cvtps_pd(_mm512_castps512_ps256(x)));
        high = _mm512_add_pd(high, _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1)));
    }
    double total() const { return _mm512_reduce_add_pd(_mm512_add_pd(low, high)); }
};

// Lane i of a where bit i of mask is set, else of b.
inline Floats choose(uint32_t mask, Floats a, Floats b) {
    return _mm512_mask_blend_ps(static_cast<__mmask16>(mask), b, a);
}

// a with the sign of b.
inline Floats copy_sign(Floats a, Floats b) {
    const Floats sign = broadcast(-0.0f);
    return _mm512_or_ps(_mm512_andnot_ps(sign, a), _mm512_and_ps(sign, b));
}

// 2^x, relative error under 2e-7, exact at 0; exactly 0 below the range, infinity above it.
inline Floats exp2(Floats x) {
    const Floats n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const Floats f = sub(x, n);
    Floats p = broadcast(1.326472728e-3f);
    p = fma(p, f, broadcast(9.671512716e-3f));
    p = fma(p, f, broadcast(5.550733744e-2f));
    p = fma(p, f, broadcast(2.402224208e-1f));
    p = fma(p, f, broadcast(6.931469776e-1f));
    p = fma(p, f, broadcast(1.0f));
    return _mm512_scalef_ps(p, n);
}

inline Floats load_bf16(const uint16_t* p) {
    const __m256i raw = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(raw), 16));
}

inline Floats load_int8(const int8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}

inline Bits load_bits(const void* p) { return _mm512_loadu_si512(p); }
inline void store_bits(void* p, Bits x) { _mm512_storeu_si512(p, x); }
inline Bits bits_of(Floats x) { return _mm512_castps_si512(x); }
inline Floats floats_of(Bits x) { return _mm512_castsi512_ps(x); }

inline Floats load_f16(const uint16_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}

// Round to nearest even.
inline void store_bf16(uint16_t* p, Floats x) {
#if defined(__AVX512BF16__)
    const __m256i rounded = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x));
#else
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i up = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    const __m256i rounded = _mm512_cvtepi32_epi16(_mm512_srli_epi32(up, 16));
#endif
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), rounded);
}

// The even (low) and odd (high) elements of sixteen pairs of bf16.
inline Floats low_bf16(const uint16_t* pairs) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(pairs), 16));
}
inline Floats high_bf16(const uint16_t* pairs) {
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(pairs), _mm512_set1_epi32(0xffff0000)));
}

inline Bits broadcast_int(int32_t x) { return _mm512_set1_epi32(x); }
inline Bits add_int(Bits a, Bits b) { return _mm512_add_epi32(a, b); }
inline int32_t sum_int(Bits a) { return _mm512_reduce_add_epi32(a); }
inline Bits round_to_int(Floats x) { return _mm512_cvtps_epi32(x); }
inline Floats to_floats(Bits x) { return _mm512_cvtepi32_ps(x); }
inline void store_int8(int8_t* p, Bits x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(x));
}
inline Bits low_nibbles(Bits x) { return _mm512_and_si512(x, _mm512_set1_epi8(15)); }
inline Bits high_nibbles(Bits x) { return low_nibbles(_mm512_srli_epi16(x, 4)); }

// acc + the sum of four products of unsigned bytes below 16 with signed bytes, in each lane.
inline Bits dot_nibbles(Bits acc, Bits w, Bits x) {
#if defined(__AVX512VNNI__)
    return _mm512_dpbusd_epi32(acc, w, x);
#else
    return add_int(acc, _mm512_madd_epi16(_mm512_maddubs_epi16(w, x), _mm512_set1_epi16(1)));
#endif
}

// The same for any unsigned bytes. Without VNNI in two halves, because sums of two such products exceed 16 bits.
inline Bits dot_bytes(Bits acc, Bits w, Bits x) {
#if defined(__AVX512VNNI__)
    return _mm512_dpbusd_epi32(acc, w, x);
#else
    const Bits high = _mm512_madd_epi16(_mm512_maddubs_epi16(high_nibbles(w), x), _mm512_set1_epi16(16));
    return add_int(dot_nibbles(acc, low_nibbles(w), x), high);
#endif
}

// In every lane of 32 bits.
template <int kBits>
LMK_INLINE Bits shift_left(Bits x) { return _mm512_slli_epi32(x, kBits); }
template <int kBits>
LMK_INLINE Bits shift_right(Bits x) { return _mm512_srli_epi32(x, kBits); }
template <int kByte>
LMK_INLINE Bits signed_byte(Bits x) { return _mm512_srai_epi32(shift_left<24 - 8 * kByte>(x), 24); }
LMK_INLINE Bits either(Bits a, Bits b) { return _mm512_or_si512(a, b); }

// Four quads of 32-bit units in a row. Of quads in memory the loads do most of the joining.
LMK_INLINE Bits join_quads(const __m128i (&q)[4]) {
    const __m256i low = _mm256_inserti128_si256(_mm256_castsi128_si256(q[0]), q[1], 1);
    const __m256i high = _mm256_inserti128_si256(_mm256_castsi128_si256(q[2]), q[3], 1);
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

// In place, within every quad: unit j of row i becomes unit i of row j.
LMK_INLINE void transpose_quads(Bits (&r)[4]) {
    const Bits a = _mm512_unpacklo_epi32(r[0], r[1]), b = _mm512_unpackhi_epi32(r[0], r[1]);
    const Bits c = _mm512_unpacklo_epi32(r[2], r[3]), d = _mm512_unpackhi_epi32(r[2], r[3]);
    r[0] = _mm512_unpacklo_epi64(a, c);
    r[1] = _mm512_unpackhi_epi64(a, c);
    r[2] = _mm512_unpacklo_epi64(b, d);
    r[3] = _mm512_unpackhi_epi64(b, d);
}

}  // namespace lmk
