// Eight float lanes on AVX2 with FMA and F16C. The same names exist for AVX-512; kernels use nothing else.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace lmk {

using Floats = __m256;
using Bits = __m256i;
constexpr int kLanes = 8;

inline Floats zero() { return _mm256_setzero_ps(); }
inline Floats broadcast(float x) { return _mm256_set1_ps(x); }
inline Floats load(const float* p) { return _mm256_loadu_ps(p); }
inline void store(float* p, Floats x) { _mm256_storeu_ps(p, x); }
inline Floats add(Floats a, Floats b) { return _mm256_add_ps(a, b); }
inline Floats sub(Floats a, Floats b) { return _mm256_sub_ps(a, b); }
inline Floats mul(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
inline Floats fma(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
inline Floats max(Floats a, Floats b) { return _mm256_max_ps(a, b); }
inline Floats min(Floats a, Floats b) { return _mm256_min_ps(a, b); }
inline Floats div(Floats a, Floats b) { return _mm256_div_ps(a, b); }
// Bit i: lane i is not a number.
inline uint32_t nans(Floats a) { return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a, a, _CMP_UNORD_Q))); }
// Bit i: lane i of a is at least that of b.
inline uint32_t at_least(Floats a, Floats b) {
    return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GE_OQ)));
}
// x where it is at least `bound`, else 0.
inline Floats keep_at_least(Floats x, Floats bound) { return _mm256_and_ps(x, _mm256_cmp_ps(x, bound, _CMP_GE_OQ)); }
// 1 / a, relative error under 3e-7; a must be finite.
inline Floats reciprocal(Floats a) {
    const Floats r = _mm256_rcp_ps(a);
    return mul(r, _mm256_fnmadd_ps(a, r, _mm256_set1_ps(2.0f)));
}
inline Floats absolute(Floats a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }

inline float sum(Floats a) {
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}
inline float maximum(Floats a) {
    __m128 x = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}

// A sum of many floats in double precision.
struct DoubleSum {
    __m256d low = _mm256_setzero_pd(), high = _mm256_setzero_pd();
    LMK_INLINE void add(Floats x) {
        low = _mm256_add_pd(low, _mm256_cvtps_pd(_mm256_castps256_ps128(x)));
        high = _mm256_add_pd(high, _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1)));
    }
    double total() const {
        const __m256d s = _mm256_add_pd(low, high);
        const __m128d half = _mm_add_pd(_mm256_castpd256_pd128(s), _mm256_extractf128_pd(s, 1));
        return _mm_cvtsd_f64(_mm_add_sd(half, _mm_unpackhi_pd(half, half)));
    }
};

// Lane i of a where bit i of mask is set, else of b.
inline Floats choose(uint32_t mask, Floats a, Floats b) {
    const __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const __m256i set = _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(static_cast<int>(mask)), bit), bit);
    return _mm256_blendv_ps(b, a, _mm256_castsi256_ps(set));
}

// a with the sign of b.
inline Floats copy_sign(Floats a, Floats b) {
    const Floats sign = broadcast(-0.0f);
    return _mm256_or_ps(_mm256_andnot_ps(sign, a), _mm256_and_ps(sign, b));
}

// 2^x, relative error under 2e-7, exact at 0; exactly 0 below the range, 2^127 and more above it.
inline Floats exp2(Floats x) {
    const Floats in_range = _mm256_cmp_ps(x, broadcast(-126.0f), _CMP_NLT_UQ);
    const Floats bounded = min(max(x, broadcast(-126.0f)), broadcast(127.0f));
    const Floats n = _mm256_round_ps(bounded, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const Floats f = sub(bounded, n);
    Floats p = broadcast(1.326472728e-3f);
    p = fma(p, f, broadcast(9.671512716e-3f));
    p = fma(p, f, broadcast(5.550733744e-2f));
    p = fma(p, f, broadcast(2.402224208e-1f));
    p = fma(p, f, broadcast(6.931469776e-1f));
    p = fma(p, f, broadcast(1.0f));
    const __m256i exponent = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
    return _mm256_and_ps(in_range, _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), exponent)));
}

inline Floats load_bf16(const uint16_t* p) {
    const __m128i raw = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(raw), 16));
}

inline Floats load_int8(const int8_t* p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}

inline Bits load_bits(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
inline void store_bits(void* p, Bits x) { _mm256_storeu_si256(static_cast<__m256i*>(p), x); }
inline Bits bits_of(Floats x) { return _mm256_castps_si256(x); }
inline Floats floats_of(Bits x) { return _mm256_castsi256_ps(x); }

inline Floats load_f16(const uint16_t* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

// Round to nearest even.
inline void store_bf16(uint16_t* p, Floats x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    const __m256i high = _mm256_srli_epi32(up, 16);
    const __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), packed);
}

// The even (low) and odd (high) elements of eight pairs of bf16.
inline Floats low_bf16(const uint16_t* pairs) {
    const __m256i raw = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(pairs));
    return _mm256_castsi256_ps(_mm256_slli_epi32(raw, 16));
}
inline Floats high_bf16(const uint16_t* pairs) {
    const __m256i raw = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(pairs));
    return _mm256_castsi256_ps(_mm256_and_si256(raw, _mm256_set1_epi32(static_cast<int>(0xffff0000))));
}

inline Bits broadcast_int(int32_t x) { return _mm256_set1_epi32(x); }
inline Bits add_int(Bits a, Bits b) { return _mm256_add_epi32(a, b); }
inline int32_t sum_int(Bits a) {
    __m128i x = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    x = _mm_add_epi32(x, _mm_shuffle_epi32(x, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(x, _mm_shuffle_epi32(x, 0xb1)));
}
inline Bits round_to_int(Floats x) { return _mm256_cvtps_epi32(x); }
inline Floats to_floats(Bits x) { return _mm256_cvtepi32_ps(x); }
inline void store_int8(int8_t* p, Bits x) {
    const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(words, words));
}
inline Bits low_nibbles(Bits x) { return _mm256_and_si256(x, _mm256_set1_epi8(15)); }
inline Bits high_nibbles(Bits x) { return low_nibbles(_mm256_srli_epi16(x, 4)); }

// acc + the sum of four products of unsigned bytes below 16 with signed bytes, in each lane.
inline Bits dot_nibbles(Bits acc, Bits w, Bits x) {
    return add_int(acc, _mm256_madd_epi16(_mm256_maddubs_epi16(w, x), _mm256_set1_epi16(1)));
}

// The same for any unsigned bytes, in two halves, because sums of two such products exceed 16 bits.
inline Bits dot_bytes(Bits acc, Bits w, Bits x) {
    const Bits high = _mm256_madd_epi16(_mm256_maddubs_epi16(high_nibbles(w), x), _mm256_set1_epi16(16));
    return add_int(dot_nibbles(acc, low_nibbles(w), x), high);
}

// In every lane of 32 bits.
template <int kBits>
LMK_INLINE Bits shift_left(Bits x) { return _mm256_slli_epi32(x, kBits); }
template <int kBits>
LMK_INLINE Bits shift_right(Bits x) { return _mm256_srli_epi32(x, kBits); }
template <int kByte>
LMK_INLINE Bits signed_byte(Bits x) { return _mm256_srai_epi32(shift_left<24 - 8 * kByte>(x), 24); }
LMK_INLINE Bits either(Bits a, Bits b) { return _mm256_or_si256(a, b); }

// Two quads of 32-bit units in a row.
LMK_INLINE Bits join_quads(const __m128i (&q)[2]) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(q[0]), q[1], 1);
}

// In place, within every quad: unit j of row i becomes unit i of row j.
LMK_INLINE void transpose_quads(Bits (&r)[4]) {
    const Bits a = _mm256_unpacklo_epi32(r[0], r[1]), b = _mm256_unpackhi_epi32(r[0], r[1]);
    const Bits c = _mm256_unpacklo_epi32(r[2], r[3]), d = _mm256_unpackhi_epi32(r[2], r[3]);
    r[0] = _mm256_unpacklo_epi64(a, c);
    r[1] = _mm256_unpackhi_epi64(a, c);
    r[2] = _mm256_unpacklo_epi64(b, d);
    r[3] = _mm256_unpackhi_epi64(b, d);
}

}  // namespace lmk
