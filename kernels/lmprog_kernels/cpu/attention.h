// Attention of one unit of work: for every chunk, scores of all its keys, one softmax, and the mix of its values.
//
// K and V are first rearranged tile by tile, so that keys are lanes for the scores and head elements are lanes for the
// mix, whatever the number of rows: one order of accumulation for a single decode and for a long extend.
// Source of the merging of states: FlashAttention-2 (arXiv 2307.08691), section 3.1.
#pragma once

#include <algorithm>
#include <atomic>

#include "attention_plan.h"
#include "buffers.h"
#include "product.h"
#include "team.h"

namespace lmk {

constexpr float kMasked = -1e30f;     // score of a key that a row does not see
constexpr float kNoKeys = -1e20f;     // top score of no keys at all: far above kMasked, far below any score
constexpr int kScoreRows = 6;         // rows by kTileVectors sums in registers
#if defined(__AVX512F__)
constexpr int kTileVectors = 4;
#else
constexpr int kTileVectors = 2;
#endif

// The products of attention over a pool of `KV` elements.
template <class KV>
struct AttentionTypes {
    using Product = Float32Product;
};
#if defined(__AVX512BF16__)
template <>
struct AttentionTypes<uint16_t> {
    using Product = Bf16Product;
};
#endif
template <class KV>
using QueryOf = typename AttentionTypes<KV>::Product::Input;

// What all units of a layer share.
template <class KV>
struct AttentionLayer {
    const QueryOf<KV>* queries;  // [rows, heads, head_size], scaled
    const KV* kv;                // [slots, 2, kv_heads, head_size]
    int heads, kv_heads, head_size;
    float softcap;    // with it, scores come in natural units, else in units of log2
    Inputs out;       // [rows, heads * head_size]
    float* partials;  // [partials, heads, head_size] unnormalised
    float* tops;      // [partials, heads]
    float* totals;    // [partials, heads]
};

// Softmax states: weighted values not yet divided by the sum of weights, that sum, and the score of weight 1.
struct States {
    float *values, *tops, *totals;
};

template <class KV>
class AttentionScratch {
   public:
    using Product = typename AttentionTypes<KV>::Product;
    using Input = typename Product::Input;
    using Weight = typename Product::Weight;

    void reserve(int states, int head_size) {
        queries.reserve(static_cast<size_t>(states) * head_size);
        keys.reserve(static_cast<size_t>(kTile) * head_size);
        values.reserve(static_cast<size_t>(kTile) * head_size);
        scores.reserve(static_cast<size_t>(states) * kChunk);
        weights.reserve(static_cast<size_t>(states) * kChunk);
        for (int i = 0; i < 2; i++) {
            state_values[i].reserve(static_cast<size_t>(states) * head_size);
            state_tops[i].reserve(states);
            state_totals[i].reserve(states);
        }
    }
    States chunk_states() const { return {state_values[0].data(), state_tops[0].data(), state_totals[0].data()}; }
    States merged_states() const { return {state_values[1].data(), state_tops[1].data(), state_totals[1].data()}; }

    Buffer<Input> queries;   // [states, head_size]
    Buffer<Weight> keys;     // [head_size / depth, kTile, depth]
    Buffer<Weight> values;   // [kTile / depth, head_size, depth]
    Buffer<float> scores;    // [states, kChunk]
    Buffer<Input> weights;   // [states, kChunk]

   private:
    Buffer<float> state_values[2], state_tops[2], state_totals[2];
};

// ---- rearranging K and V

// Keys become lanes: out[unit of 32 bits of the head][key].
template <class KV, class Weight>
void arrange_keys(const KV* keys, size_t stride, const int32_t* slots, int count, int head_size, Weight* out) {
    constexpr bool kWidens = sizeof(Weight) != sizeof(KV);
    constexpr int kElements = kLanes * (sizeof(Weight) == 2 ? 2 : 1);  // of a head in one vector
    for (int first = 0; first < count; first += kLanes) {
        for (int d = 0; d < head_size; d += kElements) {
            Bits rows[kLanes];
#pragma GCC unroll 16
            for (int i = 0; i < kLanes; i++) {
                const KV* key = keys + static_cast<size_t>(slots[first + i]) * stride + d;
                if constexpr (kWidens) {
                    rows[i] = bits_of(load_bf16(key));
                } else {
                    rows[i] = load_bits(key);
                }
            }
            transpose(rows);
            char* to = reinterpret_cast<char*>(out + static_cast<size_t>(d) * kTile) + first * 4;
#pragma GCC unroll 16
            for (int i = 0; i < kLanes; i++) store_bits(to + i * kTile * 4, rows[i]);
        }
    }
}

#if defined(__AVX512BF16__)
// Values of two keys element by element: out[pair of keys][element][2].
inline void arrange_values(const uint16_t* values, size_t stride, const int32_t* slots, int count, int head_size,
                           uint16_t* out) {
    alignas(64) static const uint16_t kLow[32] = {0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
                                                  8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
    const Bits low = load_bits(kLow), high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
    for (int key = 0; key < count; key += 2, out += 2 * head_size) {
        const uint16_t* even = values + static_cast<size_t>(slots[key]) * stride;
        const uint16_t* odd = values + static_cast<size_t>(slots[key + 1]) * stride;
        for (int d = 0; d < head_size; d += 32) {
            const Bits a = load_bits(even + d), b = load_bits(odd + d);
            store_bits(out + 2 * d, _mm512_permutex2var_epi16(a, low, b));
            store_bits(out + 2 * d + 32, _mm512_permutex2var_epi16(a, high, b));
        }
    }
}
#endif

inline Floats load_element(const float* p) { return load(p); }
inline Floats load_element(const uint16_t* p) { return load_bf16(p); }

template <class KV>
void arrange_values(const KV* values, size_t stride, const int32_t* slots, int count, int head_size, float* out) {
    for (int key = 0; key < count; key++, out += head_size) {
        const KV* value = values + static_cast<size_t>(slots[key]) * stride;
        for (int d = 0; d < head_size; d += kLanes) store(out + d, load_element(value + d));
    }
}

// ---- products

// One block of a product with kVectors vectors of columns: c (+)= a b.
template <class Product, int kRows, int kVectors>
[[gnu::noinline]] void product_block(const typename Product::Input* a, size_t a_stride,
                                     const typename Product::Weight* b, size_t b_stride, int steps, float* out,
                                     size_t out_stride, bool accumulates) {
    Floats c[kRows][kVectors];
#pragma GCC unroll 8
    for (int m = 0; m < kRows; m++) {
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; v++) c[m][v] = accumulates ? load(out + m * out_stride + v * kLanes) : zero();
    }
    multiply<Product, kRows, kVectors, false>(a, a_stride, b, b_stride, steps, c, nullptr);
#pragma GCC unroll 8
    for (int m = 0; m < kRows; m++) {
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; v++) store(out + m * out_stride + v * kLanes, c[m][v]);
    }
}

template <class Product>
struct SmallProduct {
    const typename Product::Input* a;
    size_t a_stride;
    const typename Product::Weight* b;
    size_t b_stride;
    int steps;
    float* out;
    size_t out_stride;
    bool accumulates;
};

template <class Product, int kVectors, int kRows = kScoreRows>
void product_rows(const SmallProduct<Product>& p, int row, int count, int column) {
    if (count == kRows) {
        return product_block<Product, kRows, kVectors>(p.a + row * p.a_stride, p.a_stride, p.b + column * Product::kDepth,
                                                       p.b_stride, p.steps, p.out + row * p.out_stride + column,
                                                       p.out_stride, p.accumulates);
    }
    if constexpr (kRows > 1) product_rows<Product, kVectors, kRows - 1>(p, row, count, column);
}

template <class Product, int kVectors = kTileVectors>
void product_columns(const SmallProduct<Product>& p, int vectors, int row, int count, int column) {
    if (vectors == kVectors) return product_rows<Product, kVectors>(p, row, count, column);
    if constexpr (kVectors > 1) product_columns<Product, kVectors - 1>(p, vectors, row, count, column);
}

// All of a small product: rows begin <= row < end, `columns` rounded up to whole vectors.
template <class Product>
void small_product(const SmallProduct<Product>& p, int begin, int end, int columns) {
    const int vectors = (columns + kLanes - 1) / kLanes;
    for (int row = begin; row < end; row += kScoreRows) {
        for (int v = 0; v < vectors; v += kTileVectors) {
            product_columns<Product>(p, std::min(kTileVectors, vectors - v), row, std::min(kScoreRows, end - row),
                                     v * kLanes);
        }
    }
}

// ---- softmax

inline void store_weight(float* p, Floats x) { store(p, x); }
inline void store_weight(uint16_t* p, Floats x) { store_bf16(p, x); }

inline int vectors_of(const KeyTile& tile) { return (tile.count + kLanes - 1) / kLanes; }

// Caps and masks a row's scores in place. Returns the largest.
inline float finish_scores(const AttentionSchedule& plan, const ChunkTiles& chunk, int row, float softcap,
                           float* scores) {
    Floats top = broadcast(kNoKeys);
    for (int t = chunk.begin; t < chunk.end; t++) {
        const KeyTile& tile = plan.tiles[t];
        const uint64_t mask = row < tile.first_row ? 0 : tile.masks < 0 ? ~uint64_t{0} : plan.masks[tile.masks + row];
        for (int v = 0; v < vectors_of(tile); v++) {
            float* at = scores + tile.offset + v * kLanes;
            Floats s = load(at);
            if (softcap > 0.0f) s = mul(tanh(mul(s, broadcast(1.0f / softcap))), broadcast(softcap * kLog2E));
            if (~mask) s = choose(static_cast<uint32_t>(mask >> (v * kLanes)), s, broadcast(kMasked));
            if (~mask || softcap > 0.0f) store(at, s);
            top = max(top, s);
        }
    }
    return maximum(top);
}

// 2^(score - top) of a row's keys, and their sum. Weights of masked keys are exactly 0.
template <class Input>
float make_weights(const AttentionSchedule& plan, const ChunkTiles& chunk, const float* scores, float top,
                   Input* weights) {
    Floats total = zero();
    for (int t = chunk.begin; t < chunk.end; t++) {
        const KeyTile& tile = plan.tiles[t];
        for (int v = 0; v < vectors_of(tile); v++) {
            const int at = tile.offset + v * kLanes;
            const Floats weight = exp2(sub(load(scores + at), broadcast(top)));
            total = add(total, weight);
            store_weight(weights + at, weight);
        }
    }
    return sum(total);
}

// Merges state `from` into state `into`.
inline void merge_state(const States& into, size_t i, const States& from, size_t j, int head_size) {
    const float top = std::max(into.tops[i], from.tops[j]);
    const Floats keep = exp2(broadcast(into.tops[i] - top)), take = exp2(broadcast(from.tops[j] - top));
    const Floats total = fma(broadcast(into.totals[i]), keep, mul(broadcast(from.totals[j]), take));
    float* a = into.values + i * head_size;
    const float* b = from.values + j * head_size;
    for (int d = 0; d < head_size; d += kLanes) store(a + d, fma(load(a + d), keep, mul(load(b + d), take)));
    into.tops[i] = top;
    alignas(64) float lanes[kLanes];
    store(lanes, total);
    into.totals[i] = lanes[0];
}

inline void reset_state(const States& states, size_t i, int head_size) {
    states.tops[i] = kNoKeys;
    states.totals[i] = 0.0f;
    std::memset(states.values + i * head_size, 0, head_size * sizeof(float));
}

// Divides a state by its total and writes it out. The values of the state are overwritten.
inline void finish_state(const Inputs& out, int row, int column, const States& states, size_t i, int head_size) {
    float* values = states.values + i * head_size;
    const Floats inverse = broadcast(1.0f / states.totals[i]);
    for (int d = 0; d < head_size; d += kLanes) store(values + d, mul(load(values + d), inverse));
    put(out, row, column, values, head_size);
}

// ---- a unit

template <class KV>
class UnitAttention {
   public:
    using Product = typename AttentionTypes<KV>::Product;

    UnitAttention(const AttentionLayer<KV>& layer, const AttentionSchedule& plan, const AttentionUnit& unit,
                  AttentionScratch<KV>& scratch)
        : layer_(layer), plan_(plan), unit_(unit), scratch_(scratch), group_(layer.heads / layer.kv_heads),
          states_(unit.row_count * group_), size_(layer.head_size) {}

    void run() {
        for (int head = unit_.head_begin; head < unit_.head_end; head++) run_head(head);
    }

   private:
    void run_head(int head) {
        gather_queries(head);
        const States merged = scratch_.merged_states();
        for (int i = 0; unit_.is_whole && i < states_; i++) reset_state(merged, i, size_);
        for (int c = unit_.chunk_begin; c < unit_.chunk_end; c++) {
            const ChunkTiles& chunk = plan_.chunks[c];
            run_chunk(head, chunk);
            for (int i = chunk.first_row * group_; i < states_; i++) {
                unit_.is_whole ? merge_state(merged, i, scratch_.chunk_states(), i, size_) : keep_partial(head, chunk, i);
            }
        }
        for (int i = 0; unit_.is_whole && i < states_; i++) {
            const int row = unit_.row_start + i / group_;
            finish_state(layer_.out, row, (head * group_ + i % group_) * size_, merged, i, size_);
        }
    }

    void gather_queries(int head) {
        const size_t bytes = static_cast<size_t>(group_) * size_ * sizeof(QueryOf<KV>);
        for (int row = 0; row < unit_.row_count; row++) {
            const size_t from = (static_cast<size_t>(unit_.row_start + row) * layer_.heads + head * group_) * size_;
            std::memcpy(scratch_.queries.data() + static_cast<size_t>(row) * group_ * size_, layer_.queries + from, bytes);
        }
    }

    // States of all rows over one chunk.
    void run_chunk(int head, const ChunkTiles& chunk) {
        const int first = chunk.first_row * group_;
        for (int t = chunk.begin; t < chunk.end; t++) score_tile(head, plan_.tiles[t]);
        const States states = scratch_.chunk_states();
        for (int i = first; i < states_; i++) {
            float* scores = scratch_.scores.data() + static_cast<size_t>(i) * kChunk;
            states.tops[i] = finish_scores(plan_, chunk, i / group_, layer_.softcap, scores);
            states.totals[i] = make_weights(plan_, chunk, scores, states.tops[i],
                                            scratch_.weights.data() + static_cast<size_t>(i) * kChunk);
        }
        std::memset(states.values + static_cast<size_t>(first) * size_, 0,
                    static_cast<size_t>(states_ - first) * size_ * sizeof(float));
        for (int t = chunk.begin; t < chunk.end; t++) mix_tile(head, plan_.tiles[t]);
    }

    void score_tile(int head, const KeyTile& tile) {
        const KV* keys = layer_.kv + static_cast<size_t>(head) * size_;
        arrange_keys(keys, slot_stride(), plan_.slots.data() + tile.slots, tile.count, size_, scratch_.keys.data());
        const SmallProduct<Product> product{scratch_.queries.data(), static_cast<size_t>(size_),
                                            scratch_.keys.data(),    kTile * Product::kDepth,
                                            size_ / Product::kDepth, scratch_.scores.data() + tile.offset,
                                            kChunk,                  false};
        small_product(product, tile.first_row * group_, states_, tile.count);
    }

    void mix_tile(int head, const KeyTile& tile) {
        const KV* values = layer_.kv + static_cast<size_t>(layer_.kv_heads + head) * size_;
        arrange_values(values, slot_stride(), plan_.slots.data() + tile.slots, tile.count, size_,
                       scratch_.values.data());
        const SmallProduct<Product> product{scratch_.weights.data() + tile.offset,
                                            kChunk,
                                            scratch_.values.data(),
                                            static_cast<size_t>(size_) * Product::kDepth,
                                            (tile.count + Product::kDepth - 1) / Product::kDepth,
                                            scratch_.chunk_states().values,
                                            static_cast<size_t>(size_),
                                            true};
        small_product(product, tile.first_row * group_, states_, size_);
    }

    void keep_partial(int head, const ChunkTiles& chunk, int i) {
        const States states = scratch_.chunk_states();
        const size_t index = static_cast<size_t>(chunk.partial + i / group_) * layer_.heads + head * group_ + i % group_;
        std::memcpy(layer_.partials + index * size_, states.values + static_cast<size_t>(i) * size_,
                    size_ * sizeof(float));
        layer_.tops[index] = states.tops[i];
        layer_.totals[index] = states.totals[i];
    }

    size_t slot_stride() const { return static_cast<size_t>(2) * layer_.kv_heads * size_; }

    const AttentionLayer<KV>& layer_;
    const AttentionSchedule& plan_;
    const AttentionUnit& unit_;
    AttentionScratch<KV>& scratch_;
    int group_, states_, size_;
};

// Takes units until none is left.
template <class KV>
void attend_units(const AttentionLayer<KV>& layer, const AttentionSchedule& plan, std::atomic<int>& taken,
                  AttentionScratch<KV>& scratch) {
    const int count = static_cast<int>(plan.units.size());
    for (int i = taken++; i < count; i = taken++) UnitAttention<KV>(layer, plan, plan.units[i], scratch).run();
}

// Merges the stored states of one row and head, by position, and writes the result out.
template <class KV>
void merge_row(const AttentionLayer<KV>& layer, const AttentionSchedule& plan, int index, int head,
               AttentionScratch<KV>& scratch) {
    const States merged = scratch.merged_states(), stored{layer.partials, layer.tops, layer.totals};
    reset_state(merged, 0, layer.head_size);
    for (int i = plan.merge_offsets[index]; i < plan.merge_offsets[index + 1]; i++) {
        const size_t from = static_cast<size_t>(plan.merge_partials[i]) * layer.heads + head;
        merge_state(merged, 0, stored, from, layer.head_size);
    }
    finish_state(layer.out, plan.merged_rows[index], head * layer.head_size, merged, 0, layer.head_size);
}

template <class KV>
void merge_rows(const AttentionLayer<KV>& layer, const AttentionSchedule& plan, const Member& member,
                AttentionScratch<KV>& scratch) {
    const Share share = Share::of(static_cast<int>(plan.merged_rows.size()) * layer.heads, member.thread, member.threads);
    for (int i = share.begin; i < share.end; i++) merge_row(layer, plan, i / layer.heads, i % layer.heads, scratch);
}

}  // namespace lmk
