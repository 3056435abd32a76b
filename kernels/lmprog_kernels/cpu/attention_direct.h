// Scores and mixes for a few rows, straight from the pool: keys are turned and values paired in registers. The order of
// accumulation is that of attention_tiles.h, so the results have the same bits.
#pragma once

#include "attention_tiles.h"

namespace lmk {

constexpr int kDirectRows = 8;

// Lines fetched per step of a score: K and V of all keys by the time that their scores are done.
template <class KV>
constexpr int lines_per_step() {
    return std::max<int>(1, 2 * sizeof(KV) * kLanes * AttentionTypes<KV>::Product::kDepth / 64);
}

// Groups of kLanes keys whose scores are computed in turns: the sums of one group alone would wait for each other. (Where
// memory is what they wait for, turns make it worse.)
constexpr int groups_in_turns(int rows, bool is_fetched) { return is_fetched && kLanes == 16 && rows <= 4 ? 2 : 1; }

// c[group][row] = queries . keys. queries: [kRows, head_size]. kFetched: the rows come from a cache, so fetching them into
// the second level needs no pacing.
template <class KV, int kRows, int kGroups, bool kFetched>
LMK_INLINE void score_groups(const KV* const (&keys)[kGroups * kLanes], size_t offset, const QueryOf<KV>* queries,
                             int head_size, Floats (&c)[kGroups][kRows], const char* const* lines, size_t& line) {
    using Product = typename AttentionTypes<KV>::Product;
    constexpr int kUnits = 4 * kUnpacked<Product, KV>, kLines = lines_per_step<KV>();
    for (int d = 0; d < head_size; d += kUnits * Product::kDepth) {
#pragma GCC unroll 2
        for (int g = 0; g < kGroups; g++) {
            Bits turned[kUnits];
            turn_keys<Product>(keys + g * kLanes, offset + d, turned);
#pragma GCC unroll 16
            for (int i = 0; i < kUnits; i++) {
#pragma GCC unroll 2
                for (int l = 0; l < kLines; l++) {
                    if constexpr (!kFetched) line = delayed(line);
                    prefetch(lines[line++]);
                }
#pragma GCC unroll 8
                for (int m = 0; m < kRows; m++) {
                    const auto q = Product::input(queries + m * head_size + d + i * Product::kDepth, 0);
                    c[g][m] = Product::accumulate(c[g][m], q, Product::operand(turned[i]));
                }
            }
        }
    }
}

// K or V of several heads: where they lie, and the keys of one tile.
template <class KV>
struct TileRows {
    const KV* base;  // of the first head, slot 0
    size_t stride;   // from slot to slot
    const int32_t* slots;
    int count, heads, head_size;
};

// The scores of kGroups * kLanes keys from the `key`th of a tile on.
template <class KV, int kRows, int kGroups, bool kFetched>
void score_keys(const TileRows<KV>& keys, int key, const QueryOf<KV>* queries, float* scores, const RowsAhead& ahead,
                int first) {
    constexpr int kKeys = kGroups * kLanes;
    const int head_lines = kGroups * keys.head_size / AttentionTypes<KV>::Product::kDepth * lines_per_step<KV>();
    const char* lines[kGroups * kMostPassBytes / 64 * kLanes + RowsAhead::kOverrun];
    ahead.list(first + key, keys.heads * head_lines, lines);
    if constexpr (kIsScaled<KV>) {
        for (int i = 0; i < kKeys; i += kLanes) ahead.fetch_scales(first + key + i);
    }
    size_t line = 0;
    const KV* rows[kKeys];
    for (int i = 0; i < kKeys; i++) rows[i] = keys.base + keys.slots[key + i] * keys.stride;
    for (int head = 0; head < keys.heads; head++) {
        Floats c[kGroups][kRows];
#pragma GCC unroll 16
        for (int i = 0; i < kGroups * kRows; i++) c[i / kRows][i % kRows] = zero();
        score_groups<KV, kRows, kGroups, kFetched>(rows, static_cast<size_t>(head) * keys.head_size,
                                                   queries + head * kRows * keys.head_size, keys.head_size, c, lines,
                                                   line);
#pragma GCC unroll 16
        for (int i = 0; i < kGroups * kRows; i++) {
            const int group = i / kRows, row = i % kRows;
            store(scores + (head * kRows + row) * kChunk + key + group * kLanes, c[group][row]);
        }
    }
}

// scores: [heads, kRows, kChunk]. Heads take turns within some groups of keys, so that whole rows are read in order.
// `first`: number of the tile's first key within its chunk's.
template <class KV, int kRows, bool kFetched>
void score_direct(const TileRows<KV>& keys, const QueryOf<KV>* queries, float* scores, const RowsAhead& ahead,
                  int first) {
    constexpr int kGroups = groups_in_turns(kRows, kFetched);
    int key = 0;
    for (; key + kGroups * kLanes <= keys.count; key += kGroups * kLanes) {
        score_keys<KV, kRows, kGroups, kFetched>(keys, key, queries, scores, ahead, first);
    }
    for (; key < keys.count; key += kLanes) score_keys<KV, kRows, 1, kFetched>(keys, key, queries, scores, ahead, first);
}

#if defined(__AVX512BF16__)
// The right operands that the values of one step of keys make: element by element, in pairs of keys.
template <class KV, int kVectors>
LMK_INLINE void load_values(const KV* even, const KV* odd, __m512bh (&w)[kVectors]) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; v += 2) {
        const Pairs pairs = pair_values(even + v * kLanes, odd + v * kLanes);
        w[v] = reinterpret_cast<__m512bh>(pairs.low);
        w[v + 1] = reinterpret_cast<__m512bh>(pairs.high);
    }
}
#endif
template <class KV, int kVectors>
LMK_INLINE void load_values(const KV* value, const KV*, Floats (&w)[kVectors]) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; v++) w[v] = load_element(value + v * kLanes);
}

// out[row][vector] += weights . values over a tile's keys, for kVectors vectors of elements.
template <class KV, int kRows, int kVectors>
void mix_columns(const TileRows<KV>& values, const KV* base, const QueryOf<KV>* weights, float* out) {
    using Product = typename AttentionTypes<KV>::Product;
    Floats c[kRows][kVectors];
#pragma GCC unroll 8
    for (int m = 0; m < kRows; m++) {
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; v++) c[m][v] = load(out + m * values.head_size + v * kLanes);
    }
    for (int key = 0; key < values.count; key += Product::kDepth) {
        typename Product::Operand w[kVectors];
        const KV* first = base + values.slots[key] * values.stride;
        const KV* second = base + values.slots[key + Product::kDepth - 1] * values.stride;
        load_values(first, second, w);
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
        for (int v = 0; v < kVectors; v++) store(out + m * values.head_size + v * kLanes, c[m][v]);
    }
}

// Vectors whose sums fit the registers next to their operands.
constexpr int mix_vectors(int rows) { return rows <= kScoreRows ? kTileVectors : kTileVectors / 2; }

// weights: [heads, kRows, kChunk]; out: [heads, kRows, head_size].
template <class KV, int kRows>
void mix_direct(const TileRows<KV>& values, const QueryOf<KV>* weights, float* out) {
    constexpr int kVectors = mix_vectors(kRows), kElements = kVectors * kLanes, kPair = 2 * kLanes;
    for (int head = 0; head < values.heads; head++) {
        const QueryOf<KV>* head_weights = weights + head * kRows * kChunk;
        float* head_out = out + head * kRows * values.head_size;
        const KV* base = values.base + head * values.head_size;
        int d = 0;
        for (; d + kElements <= values.head_size; d += kElements) {
            mix_columns<KV, kRows, kVectors>(values, base + d, head_weights, head_out + d);
        }
        for (; d < values.head_size; d += kPair) {
            mix_columns<KV, kRows, 2>(values, base + d, head_weights, head_out + d);
        }
    }
}

// The functions for one number of rows.
template <class KV>
struct DirectKernels {
    decltype(&score_direct<KV, 1, false>) score;
    decltype(&mix_direct<KV, 1>) mix;
};

// `is_fetched`: the rows of the pool are in the caches already.
template <class KV, bool kFetched>
const DirectKernels<KV>& kernels_of(int rows) {
    static const DirectKernels<KV> kernels[kDirectRows] = {
        {score_direct<KV, 1, kFetched>, mix_direct<KV, 1>}, {score_direct<KV, 2, kFetched>, mix_direct<KV, 2>},
        {score_direct<KV, 3, kFetched>, mix_direct<KV, 3>}, {score_direct<KV, 4, kFetched>, mix_direct<KV, 4>},
        {score_direct<KV, 5, kFetched>, mix_direct<KV, 5>}, {score_direct<KV, 6, kFetched>, mix_direct<KV, 6>},
        {score_direct<KV, 7, kFetched>, mix_direct<KV, 7>}, {score_direct<KV, 8, kFetched>, mix_direct<KV, 8>},
    };
    return kernels[rows - 1];
}

template <class KV>
const DirectKernels<KV>& direct_kernels(int rows, bool is_fetched) {
    return is_fetched ? kernels_of<KV, true>(rows) : kernels_of<KV, false>(rows);
}

}  // namespace lmk
