// Scores to weights, and softmax states of parts to the state of the whole.
#pragma once

#include "attention_types.h"

namespace lmk {

inline void store_weight(float* p, Floats x) { store(p, x); }
inline void store_weight(uint16_t* p, Floats x) { store_bf16(p, x); }

inline int vectors_of(const KeyTile& tile) { return (tile.count + kLanes - 1) / kLanes; }

constexpr int kVectorsOfTile = kTile / kLanes;

// Scales, caps and masks a row's scores in place. `scales`: of the keys, or null. Returns the largest.
inline float finish_scores(const AttentionSchedule& plan, const ChunkTiles& chunk, int row, float softcap,
                           const float* scales, float* scores) {
    Floats top = broadcast(kNoKeys);
    for (int t = chunk.begin; t < chunk.end; t++) {
        const KeyTile& tile = plan.tiles[t];
        float* at = scores + tile.offset;
        if (tile.masks < 0 && softcap == 0.0f && !scales) {
#pragma GCC unroll 8
            for (int v = 0; v < kVectorsOfTile; v++) top = max(top, load(at + v * kLanes));
            continue;
        }
        const int vectors = vectors_of(tile);
        const uint64_t mask = row < tile.first_row ? 0 : tile.masks < 0 ? ~uint64_t{0} : plan.masks[tile.masks + row];
        for (int v = 0; v < vectors; v++, at += kLanes) {
            Floats s = load(at);
            if (scales) s = mul(s, load(scales + tile.offset + v * kLanes));
            if (softcap > 0.0f) s = mul(tanh(mul(s, broadcast(1.0f / softcap))), broadcast(softcap * kLog2E));
            if (~mask) s = choose(static_cast<uint32_t>(mask >> (v * kLanes)), s, broadcast(kMasked));
            store(at, s);
            top = max(top, s);
        }
    }
    return maximum(top);
}

// 2^(score - top) of a row's keys, times `scales` of their values if not null, and their sum without the scales. Weights
// of masked keys are exactly 0. Every vector of a tile has its own sum, so that they do not wait for each other.
template <class Input>
float make_weights(const AttentionSchedule& plan, const ChunkTiles& chunk, const float* scores, float top,
                   const float* scales, Input* weights) {
    Floats totals[kVectorsOfTile];
#pragma GCC unroll 8
    for (Floats& total : totals) total = zero();
    const auto weigh = [&](int at, Floats& total) {
        const Floats weight = exp2(sub(load(scores + at), broadcast(top)));
        total = add(total, weight);
        store_weight(weights + at, scales ? mul(weight, load(scales + at)) : weight);
    };
    for (int t = chunk.begin; t < chunk.end; t++) {
        const KeyTile& tile = plan.tiles[t];
        const int vectors = vectors_of(tile);
        if (vectors == kVectorsOfTile) {
#pragma GCC unroll 8
            for (int v = 0; v < kVectorsOfTile; v++) weigh(tile.offset + v * kLanes, totals[v]);
        } else {
#pragma GCC unroll 8
            for (int v = 0; v < kVectorsOfTile; v++) {
                if (v < vectors) weigh(tile.offset + v * kLanes, totals[v]);
            }
        }
    }
#pragma GCC unroll 8
    for (int v = 1; v < kVectorsOfTile; v++) totals[0] = add(totals[0], totals[v]);
    return sum(totals[0]);
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
    for (int d = 0; d < head_size; d += kLanes) store(values + d, fma(load(values + d), inverse, zero()));  // + 0: no -0
    put(out, row, column, values, head_size);
}

}  // namespace lmk
