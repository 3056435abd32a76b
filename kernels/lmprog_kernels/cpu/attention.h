// Attention of one unit of work: for every chunk, scores of all its keys, one softmax, and the mix of its values.
//
// K and V are first rearranged tile by tile, so that keys are lanes for the scores and head elements are lanes for the
// mix, whatever the number of rows: one order of accumulation for a single decode and for a long extend.
// Source of the merging of states: FlashAttention-2 (arXiv 2307.08691), section 3.1.
#pragma once

#include <algorithm>
#include <atomic>

#include "attention_direct.h"
#include "attention_softmax.h"
#include "team.h"

namespace lmk {

// A unit is computed in passes: one chunk, and as many heads as fit the second-level cache together with the rows that
// are fetched for the next pass.
template <class KV>
class UnitAttention {
   public:
    using Product = typename AttentionTypes<KV>::Product;

    // `next`: the unit that this thread computes after this one, or null.
    UnitAttention(const AttentionLayer<KV>& layer, const AttentionSchedule& plan, const AttentionUnit& unit,
                  const AttentionUnit* next, AttentionScratch<KV>& scratch)
        : layer_(layer), plan_(plan), unit_(unit), next_(next), scratch_(scratch),
          group_(layer.heads / layer.kv_heads), states_(unit.row_count * group_), size_(layer.head_size) {}

    void run() {
        const int heads = heads_per_pass(unit_);
        for (int head = unit_.head_begin; head < unit_.head_end; head += heads) {
            run_heads(head, std::min(unit_.head_end, head + heads));
        }
    }

   private:
    // Dense units are bound by arithmetic: one head at a time keeps their states small.
    int heads_per_pass(const AttentionUnit& unit) const {
        constexpr int kTokenBytes = 1024;
        if (is_dense(unit)) return 1;
        return std::max(1, kTokenBytes / static_cast<int>(2 * size_ * sizeof(KV)));
    }
    bool is_dense(const AttentionUnit& unit) const { return unit.row_count * group_ >= kDenseStates; }

    void run_heads(int head_begin, int head_end) {
        const States merged = scratch_.merged_states();
        const int count = (head_end - head_begin) * states_;
        for (int head = head_begin; head < head_end; head++) gather_queries(head, head - head_begin);
        for (int i = 0; unit_.is_whole && i < count; i++) reset_state(merged, i, size_);
        for (int c = unit_.chunk_begin; c < unit_.chunk_end; c++) {
            RowsAhead<KV> ahead = rows_after(c, head_begin, head_end);
            for (int head = head_begin; head < head_end; head++) {
                run_chunk(head, head - head_begin, plan_.chunks[c], ahead);
                keep(head, head - head_begin, plan_.chunks[c]);
            }
        }
        for (int i = 0; unit_.is_whole && i < count; i++) {
            const int head = head_begin + i / states_, state = i % states_;
            const int column = (head * group_ + state % group_) * size_;
            finish_state(layer_.out, unit_.row_start + state / group_, column, merged, i, size_);
        }
    }

    // What the next pass reads: the next chunk of these heads, the first of the next heads, or the next unit's first.
    RowsAhead<KV> rows_after(int chunk, int head_begin, int head_end) const {
        if (is_dense(unit_)) return {};
        if (chunk + 1 < unit_.chunk_end) return rows_of(chunk + 1, head_begin, head_end);
        if (head_end < unit_.head_end) {
            return rows_of(unit_.chunk_begin, head_end, std::min(unit_.head_end, 2 * head_end - head_begin));
        }
        if (!next_ || is_dense(*next_)) return {};
        const int end = std::min(next_->head_end, next_->head_begin + heads_per_pass(*next_));
        return rows_of(next_->chunk_begin, next_->head_begin, end);
    }

    RowsAhead<KV> rows_of(int chunk, int head_begin, int head_end) const {
        const KeyTile &first = plan_.tiles[plan_.chunks[chunk].begin], &last = plan_.tiles[plan_.chunks[chunk].end - 1];
        return {layer_.kv, layer_.kv_heads, size_, plan_.slots.data() + first.slots,
                last.offset + last.count - first.offset, head_begin, head_end - head_begin};
    }

    typename Product::Input* queries_of(int pass_head) const {
        return scratch_.queries.data() + static_cast<size_t>(pass_head) * states_ * size_;
    }

    void gather_queries(int head, int pass_head) {
        const size_t count = static_cast<size_t>(group_) * size_;
        for (int row = 0; row < unit_.row_count; row++) {
            const size_t from = (static_cast<size_t>(unit_.row_start + row) * layer_.heads + head * group_) * size_;
            std::memcpy(queries_of(pass_head) + row * count, layer_.queries + from, count * sizeof(QueryOf<KV>));
        }
    }

    // States of all rows over one chunk.
    void run_chunk(int head, int pass_head, const ChunkTiles& chunk, RowsAhead<KV>& ahead) {
        const int first = chunk.first_row * group_;
        for (int t = chunk.begin; t < chunk.end; t++) score_tile(head, pass_head, plan_.tiles[t], ahead);
        const States states = scratch_.chunk_states();
        for (int i = first; i < states_; i++) {
            float* scores = scratch_.scores.data() + static_cast<size_t>(i) * kChunk;
            states.tops[i] = finish_scores(plan_, chunk, i / group_, layer_.softcap, scores);
            states.totals[i] = make_weights(plan_, chunk, scores, states.tops[i],
                                            scratch_.weights.data() + static_cast<size_t>(i) * kChunk);
        }
        std::memset(states.values + static_cast<size_t>(first) * size_, 0,
                    static_cast<size_t>(states_ - first) * size_ * sizeof(float));
        for (int t = chunk.begin; t < chunk.end; t++) mix_tile(head, plan_.tiles[t], ahead);
    }

    void score_tile(int head, int pass_head, const KeyTile& tile, RowsAhead<KV>& ahead) {
        const KV* keys = layer_.kv + static_cast<size_t>(head) * size_;
        if (states_ <= kDirectRows) {
            return direct_kernels<KV>(states_).score(keys, slot_stride(), plan_.slots.data() + tile.slots, tile.count,
                                                     size_, queries_of(pass_head), scratch_.scores.data() + tile.offset,
                                                     ahead);
        }
        arrange_keys<Product>(keys, slot_stride(), plan_.slots.data() + tile.slots, tile.count, size_, scratch_.keys.data(),
                     ahead);
        const SmallProduct<Product> product{queries_of(pass_head),   static_cast<size_t>(size_),
                                            scratch_.keys.data(),    kTile * Product::kDepth,
                                            size_ / Product::kDepth, scratch_.scores.data() + tile.offset,
                                            kChunk,                  false};
        small_product(product, tile.first_row * group_, states_, tile.count);
    }

    void mix_tile(int head, const KeyTile& tile, RowsAhead<KV>& ahead) {
        const KV* values = layer_.kv + static_cast<size_t>(layer_.kv_heads + head) * size_;
        if (states_ <= kDirectRows) {
            return direct_kernels<KV>(states_).mix(values, slot_stride(), plan_.slots.data() + tile.slots, tile.count,
                                                   scratch_.weights.data() + tile.offset,
                                                   scratch_.chunk_states().values, size_, ahead);
        }
        arrange_values(values, slot_stride(), plan_.slots.data() + tile.slots, tile.count, size_,
                       scratch_.values.data(), ahead);
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

    // Merges a chunk's states into those of the chunks before it, or stores them to be merged later.
    void keep(int head, int pass_head, const ChunkTiles& chunk) {
        const States merged = scratch_.merged_states(), states = scratch_.chunk_states();
        for (int i = chunk.first_row * group_; i < states_; i++) {
            if (unit_.is_whole) {
                merge_state(merged, static_cast<size_t>(pass_head) * states_ + i, states, i, size_);
                continue;
            }
            const size_t row = chunk.partial + i / group_, index = row * layer_.heads + head * group_ + i % group_;
            std::memcpy(layer_.partials + index * size_, states.values + static_cast<size_t>(i) * size_,
                        size_ * sizeof(float));
            layer_.tops[index] = states.tops[i];
            layer_.totals[index] = states.totals[i];
        }
    }

    size_t slot_stride() const { return static_cast<size_t>(2) * layer_.kv_heads * size_; }

    const AttentionLayer<KV>& layer_;
    const AttentionSchedule& plan_;
    const AttentionUnit& unit_;
    const AttentionUnit* next_;
    AttentionScratch<KV>& scratch_;
    int group_, states_, size_;
};

// Takes units until none is left.
template <class KV>
void attend_units(const AttentionLayer<KV>& layer, const AttentionSchedule& plan, std::atomic<int>& taken,
                  AttentionScratch<KV>& scratch) {
    const int count = static_cast<int>(plan.units.size());
    int next = taken++;
    for (int i = next; i < count; i = next) {
        next = taken++;
        const AttentionUnit* next_unit = next < count ? &plan.units[next] : nullptr;
        UnitAttention<KV>(layer, plan, plan.units[i], next_unit, scratch).run();
    }
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
