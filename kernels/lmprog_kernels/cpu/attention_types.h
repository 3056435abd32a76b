// What the parts of attention share: types by kind of pool, the layer's arrays, and a thread's scratch memory.
#pragma once

#include <algorithm>

#include "attention_plan.h"
#include "buffers.h"
#include "kv_rows.h"
#include "product.h"

namespace lmk {

constexpr float kMasked = -1e30f;     // score of a key that a row does not see
constexpr float kNoKeys = -1e20f;     // top score of no keys at all: far above kMasked, far below any score
constexpr int kPassBytes = 1024;      // of a token's K and V, in a pass over several heads: a chunk is 256 KiB
constexpr int kMostPassBytes = 4096;  // of one head of 512 float32 elements
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
template <>
struct AttentionTypes<int8_t> {
    using Product = Bf16Product;
};
#endif
template <class KV>
using QueryOf = typename AttentionTypes<KV>::Product::Input;

// What all units of a layer share.
template <class KV>
struct AttentionLayer {
    const QueryOf<KV>* queries;  // [rows, heads, head_size], scaled
    const KV* kv;                // [slots, ...]: see KvShape
    int heads, kv_heads, head_size;
    float softcap;    // with it, scores come in natural units, else in units of log2
    Inputs out;       // [rows, heads * head_size]
    float* partials;  // [partials, heads, head_size] unnormalised
    float* tops;      // [partials, heads]
    float* totals;    // [partials, heads]
    bool is_fetched;  // the units' keys that the schedule lists as fetched are

    KvShape<KV> kv_shape() const { return {kv_heads, head_size}; }
};

// Heads of a pass over a chunk of which few rows see anything.
template <class KV>
int heads_of_pass(int head_size) {
    return std::max(1, kPassBytes / static_cast<int>(2 * head_size * sizeof(KV)));
}

// States that a thread holds at once: a dense block of one head, or a few rows of all heads.
inline int most_states(int group, int kv_heads) {
    return std::max({group, kBlockStates, (kDenseStates - 1) * kv_heads});
}

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
        if constexpr (kIsScaled<KV>) {
            for (Buffer<float>& part : scales) part.reserve(static_cast<size_t>(heads_of_pass<KV>(head_size)) * kChunk);
        }
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
    Buffer<float> scales[2];  // of K and of V, for int8: [heads, kChunk]

   private:
    Buffer<float> state_values[2], state_tops[2], state_totals[2];
};

}  // namespace lmk
