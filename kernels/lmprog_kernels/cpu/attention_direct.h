// Scores and mixes for a few rows, straight from the pool: keys are turned and values paired in registers. The order of
// accumulation is that of attention_tiles.h, so the results have the same bits.
#pragma once

#include "attention_tiles.h"

namespace lmk {

constexpr int kDirectRows = 4;

// One group of kLanes keys: c[row] = queries . keys. queries: [kRows, head_size].
template <class KV, int kRows>
LMK_INLINE void score_group(const KV* const (&keys)[kLanes], const QueryOf<KV>* queries, int head_size,
                            Floats (&c)[kRows], RowsAhead<KV>& ahead) {
    using Product = typename AttentionTypes<KV>::Product;
    constexpr int kElements = kLanes * Product::kDepth;
    for (int d = 0; d < head_size; d += kElements) {
        Bits rows[kLanes];
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; i++) rows[i] = load_key<Product>(keys[i] + d);
        transpose(rows);
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; i++) {
            ahead.advance();
#pragma GCC unroll 8
            for (int m = 0; m < kRows; m++) {
                const auto q = Product::input(queries + m * head_size + d + i * Product::kDepth, 0);
                c[m] = Product::accumulate(c[m], q, Product::operand(rows[i]));
            }
        }
    }
}

template <class KV, int kRows>
void score_direct(const KV* keys, size_t stride, const int32_t* slots, int count, int head_size,
                  const QueryOf<KV>* queries, float* scores, RowsAhead<KV>& ahead) {
    for (int first = 0; first < count; first += kLanes) {
        const KV* of[kLanes];
        for (int i = 0; i < kLanes; i++) of[i] = keys + static_cast<size_t>(slots[first + i]) * stride;
        Floats c[kRows];
#pragma GCC unroll 8
        for (int m = 0; m < kRows; m++) c[m] = zero();
        score_group<KV, kRows>(of, queries, head_size, c, ahead);
#pragma GCC unroll 8
        for (int m = 0; m < kRows; m++) store(scores + m * kChunk + first, c[m]);
    }
}

#if defined(__AVX512BF16__)
// The right operands that the values of one step of keys make: element by element, in pairs of keys.
template <int kVectors>
LMK_INLINE void load_values(const uint16_t* even, const uint16_t* odd, __m512bh (&w)[kVectors]) {
    const Bits low = pairing_of_low_elements(), high = pairing_of_high_elements();
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; v += 2) {
        const Bits a = load_bits(even + v * kLanes), b = load_bits(odd + v * kLanes);
        w[v] = reinterpret_cast<__m512bh>(_mm512_permutex2var_epi16(a, low, b));
        w[v + 1] = reinterpret_cast<__m512bh>(_mm512_permutex2var_epi16(a, high, b));
    }
}
#endif
template <class KV, int kVectors>
LMK_INLINE void load_values(const KV* value, const KV*, Floats (&w)[kVectors]) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; v++) w[v] = load_element(value + v * kLanes);
}

// c[row][vector] += weights . values over a tile's keys, for kVectors vectors of elements.
template <class KV, int kRows, int kVectors>
void mix_columns(const KV* values, size_t stride, const int32_t* slots, int count, const QueryOf<KV>* weights,
                 float* out, int head_size, RowsAhead<KV>& ahead) {
    using Product = typename AttentionTypes<KV>::Product;
    Floats c[kRows][kVectors];
#pragma GCC unroll 8
    for (int m = 0; m < kRows; m++) {
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; v++) c[m][v] = load(out + m * head_size + v * kLanes);
    }
    for (int key = 0; key < count; key += Product::kDepth) {
        typename Product::Operand w[kVectors];
        const KV* first = values + static_cast<size_t>(slots[key]) * stride;
        const KV* second = values + static_cast<size_t>(slots[key + Product::kDepth - 1]) * stride;
        load_values(first, second, w);
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; v++) ahead.advance();
#pragma GCC unroll 8
        for (int m = 0; m < kRows; m++) {
            const auto x = Product::input(weights + m * kChunk + key, 0);
#pragma GCC unroll 4
            for (int v = 0; v < kVectors; v++) c[m][v] = Product::accumulate(c[m][v], x, w[v]);
        }
    }
#pragma GCC unroll 8
    for (int m = 0; m < kRows; m++) {
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; v++) store(out + m * head_size + v * kLanes, c[m][v]);
    }
}

template <class KV, int kRows>
void mix_direct(const KV* values, size_t stride, const int32_t* slots, int count, const QueryOf<KV>* weights,
                float* out, int head_size, RowsAhead<KV>& ahead) {
    constexpr int kElements = kTileVectors * kLanes;
    int d = 0;
    for (; d + kElements <= head_size; d += kElements) {
        mix_columns<KV, kRows, kTileVectors>(values + d, stride, slots, count, weights, out + d, head_size, ahead);
    }
    if (d < head_size) {
        mix_columns<KV, kRows, 2>(values + d, stride, slots, count, weights, out + d, head_size, ahead);
    }
}

// The functions for one number of rows.
template <class KV>
struct DirectKernels {
    decltype(&score_direct<KV, 1>) score;
    decltype(&mix_direct<KV, 1>) mix;
};

template <class KV>
const DirectKernels<KV>& direct_kernels(int rows) {
    static const DirectKernels<KV> kernels[kDirectRows] = {
        {score_direct<KV, 1>, mix_direct<KV, 1>},
        {score_direct<KV, 2>, mix_direct<KV, 2>},
        {score_direct<KV, 3>, mix_direct<KV, 3>},
        {score_direct<KV, 4>, mix_direct<KV, 4>},
    };
    return kernels[rows - 1];
}

}  // namespace lmk
