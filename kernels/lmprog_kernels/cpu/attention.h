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

struct Heads {
    int begin, end;
    int count() const { return end - begin; }
};

// A unit is computed in passes: one chunk, and as many heads as fit the second-level cache.
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
        const int step = heads_per_pass(unit_);
        for (int head = unit_.head_begin; head < unit_.head_end; head += step) {
            run_heads({head, std::min(unit_.head_end, head + step)});
        }
    }

   private:
    // Dense units are bound by arithmetic: one head at a time keeps their states small.
    int heads_per_pass(const AttentionUnit& unit) const {
        return is_dense(unit) ? 1 : heads_of_pass<KV>(size_);
    }
    bool is_dense(const AttentionUnit& unit) const { return unit.row_count * group_ >= kDenseStates; }

    void run_heads(Heads heads) {
        const States merged = scratch_.merged_states();
        const int count = heads.count() * states_;
        gather_queries(heads);
        for (int c = unit_.chunk_begin; c < unit_.chunk_end; c++) {
            // the first chunk's states are what merging them with nothing would give
            const bool is_first = unit_.is_whole && c == unit_.chunk_begin;
            const States states = is_first ? merged : scratch_.chunk_states();
            const ChunkTiles& chunk = plan_.chunks[c];
            for (int t = chunk.begin; t < chunk.end; t++) score(c, t, heads);
            if constexpr (kIsScaled<KV>) gather_scales(chunk, heads);
            weigh(chunk, heads, states);
            for (int t = chunk.begin; t < chunk.end; t++) mix(plan_.tiles[t], heads, states, t > chunk.begin);
            if (!is_first) keep(chunk, heads);
        }
        for (int i = 0; unit_.is_whole && i < count; i++) {
            const int head = heads.begin + i / states_, state = i % states_;
            const int column = (head * group_ + state % group_) * size_;
            finish_state(layer_.out, unit_.row_start + state / group_, column, merged, i, size_);
        }
    }

    // [heads, rows, group, head_size]
    void gather_queries(Heads heads) {
        const size_t count = static_cast<size_t>(group_) * size_;
        QueryOf<KV>* to = scratch_.queries.data();
        for (int head = heads.begin; head < heads.end; head++) {
            for (int row = 0; row < unit_.row_count; row++, to += count) {
                const size_t from = (static_cast<size_t>(unit_.row_start + row) * layer_.heads + head * group_) * size_;
                std::memcpy(to, layer_.queries + from, count * sizeof(QueryOf<KV>));
            }
        }
    }

    // Of the keys of a chunk's tiles, and of lanes behind them.
    void gather_scales(const ChunkTiles& chunk, Heads heads) {
        const KvShape<KV> shape = layer_.kv_shape();
        const size_t stride = shape.stride();
        for (int t = chunk.begin; t < chunk.end; t++) {
            const KeyTile& tile = plan_.tiles[t];
            const int32_t* slots = plan_.slots.data() + tile.slots;
            for (int key = 0; key < vectors_of(tile) * kLanes; key++) {
                const KV* row = layer_.kv + static_cast<size_t>(slots[key]) * stride + shape.scale_offset(heads.begin);
                const float* from = reinterpret_cast<const float*>(row);
                for (int h = 0; h < heads.count(); h++) {
                    const size_t to = static_cast<size_t>(h) * kChunk + tile.offset + key;
                    for (int part = 0; part < 2; part++) scratch_.scales[part][to] = from[2 * h + part];
                }
            }
        }
    }
    // Of K (part 0) or V of one head of the pass; null for pools without scales.
    const float* scales_of(int part, int head) const {
        return kIsScaled<KV> ? scratch_.scales[part].data() + static_cast<size_t>(head) * kChunk : nullptr;
    }

    RowsAhead rows_ahead(int chunk, Heads heads) const {
        const int next = chunk_after(chunk, heads);
        const KvShape<KV> shape = layer_.kv_shape();
        const size_t head_bytes = size_ * sizeof(KV), first = heads.begin * head_bytes;
        return {reinterpret_cast<const char*>(layer_.kv) + first,
                shape.stride() * sizeof(KV),
                layer_.kv_heads * head_bytes,
                shape.scale_offset(heads.begin) - first,
                heads.count() * head_bytes,
                slots_of(chunk),
                next < 0 ? SlotRange{nullptr, nullptr} : slots_of(next)};
    }

    // The chunk of the next pass with the same heads, or -1: the first chunk of other heads is too short a time away.
    int chunk_after(int chunk, Heads heads) const {
        if (chunk + 1 < unit_.chunk_end) return chunk + 1;
        if (heads.end < unit_.head_end || !next_ || is_dense(*next_) || next_->head_begin != heads.begin) return -1;
        return next_->chunk_begin;
    }

    SlotRange slots_of(int chunk) const {
        const KeyTile &first = plan_.tiles[plan_.chunks[chunk].begin], &last = plan_.tiles[plan_.chunks[chunk].end - 1];
        const int32_t* begin = plan_.slots.data() + first.slots;
        return {begin, begin + (last.offset + last.count - first.offset)};
    }

    bool is_fetched() const { return layer_.is_fetched && unit_.is_fetched; }

    // ---- the steps of a pass. Scores, weights and values are [heads, states, ...] in the scratch memory.

    TileRows<KV> rows(const KeyTile& tile, Heads heads, bool values) const {
        const int head = heads.begin + (values ? layer_.kv_heads : 0);
        return {layer_.kv + static_cast<size_t>(head) * size_, layer_.kv_shape().stride(),
                plan_.slots.data() + tile.slots, tile.count, heads.count(), size_};
    }

    // K or V of one head in the `index`th tile of this block of rows, if there is one.
    RowsToFetch rows_to_fetch(int index, int head, bool values) const {
        if (index >= plan_.chunks[unit_.chunk_end - 1].end) return {nullptr, 0, 0, nullptr, nullptr};
        const TileRows<KV> tile = rows(plan_.tiles[index], {head, head + 1}, values);
        return {reinterpret_cast<const char*>(tile.base), tile.stride * sizeof(KV), size_ * sizeof(KV), tile.slots,
                tile.slots + tile.count};
    }

    void score(int chunk, int index, Heads heads) {
        const KeyTile& tile = plan_.tiles[index];
        const TileRows<KV> keys = rows(tile, heads, false);
        float* scores = scratch_.scores.data() + tile.offset;
        if (states_ <= kDirectRows) {
            const int first = tile.offset - plan_.tiles[plan_.chunks[chunk].begin].offset;
            const auto& kernels = direct_kernels<KV>(states_, is_fetched());
            return kernels.score(keys, scratch_.queries.data(), scores, rows_ahead(chunk, heads), first);
        }
        for (int h = 0; h < heads.count(); h++) {
            arrange_keys<Product>(keys.base + h * size_, keys.stride, keys.slots, tile.count, size_,
                                  scratch_.keys.data());
            const SmallProduct<Product> product{scratch_.queries.data() + static_cast<size_t>(h) * states_ * size_,
                                                static_cast<size_t>(size_),
                                                scratch_.keys.data(),
                                                kTile * Product::kDepth,
                                                size_ / Product::kDepth,
                                                scores + static_cast<size_t>(h) * states_ * kChunk,
                                                kChunk,
                                                false};
            // the keys that are needed next, and the values of these keys, which are needed after the softmax
            RowsToFetch ahead[2] = {rows_to_fetch(index + 1, heads.begin + h, false),
                                    rows_to_fetch(index, heads.begin + h, true)};
            small_product(product, tile.first_row * group_, states_, tile.count, ahead);
        }
    }

    void weigh(const ChunkTiles& chunk, Heads heads, const States& states) {
        // the first product overwrites the rows that it computes
        const int kept = states_ <= kDirectRows ? unit_.row_count : plan_.tiles[chunk.begin].first_row;
        for (int i = 0; i < heads.count() * states_; i++) {
            const int row = i % states_ / group_;
            if (row < kept) reset_state(states, i, size_);
            if (row < chunk.first_row) continue;
            const size_t at = static_cast<size_t>(i) * kChunk;
            const int head = i / states_;
            float* scores = scratch_.scores.data() + at;
            states.tops[i] = finish_scores(plan_, chunk, row, layer_.softcap, scales_of(0, head), scores);
            states.totals[i] = make_weights(plan_, chunk, scores, states.tops[i], scales_of(1, head),
                                            scratch_.weights.data() + at);
        }
    }

    void mix(const KeyTile& tile, Heads heads, const States& states, bool accumulates) {
        const TileRows<KV> values = rows(tile, heads, true);
        const auto* weights = scratch_.weights.data() + tile.offset;
        float* out = states.values;
        if (states_ <= kDirectRows) return direct_kernels<KV>(states_, is_fetched()).mix(values, weights, out);
        for (int h = 0; h < heads.count(); h++) {
            arrange_values(values.base + h * size_, values.stride, values.slots, tile.count, size_,
                           scratch_.values.data());
            const SmallProduct<Product> product{weights + static_cast<size_t>(h) * states_ * kChunk,
                                                kChunk,
                                                scratch_.values.data(),
                                                static_cast<size_t>(size_) * Product::kDepth,
                                                (tile.count + Product::kDepth - 1) / Product::kDepth,
                                                out + static_cast<size_t>(h) * states_ * size_,
                                                static_cast<size_t>(size_),
                                                accumulates};
            RowsToFetch nothing[2] = {};
            small_product(product, tile.first_row * group_, states_, size_, nothing);
        }
    }

    // Merges a chunk's states into those of the chunks before it, or stores them to be merged later.
    void keep(const ChunkTiles& chunk, Heads heads) {
        const States merged = scratch_.merged_states(), states = scratch_.chunk_states();
        for (int i = 0; i < heads.count() * states_; i++) {
            const int head = heads.begin + i / states_, row = i % states_ / group_;
            if (row < chunk.first_row) continue;
            if (unit_.is_whole) {
                merge_state(merged, i, states, i, size_);
                continue;
            }
            const size_t index = static_cast<size_t>(chunk.partial + row) * layer_.heads + head * group_ + i % group_;
            std::memcpy(layer_.partials + index * size_, states.values + static_cast<size_t>(i) * size_,
                        size_ * sizeof(float));
            layer_.tops[index] = states.tops[i];
            layer_.totals[index] = states.totals[i];
        }
    }

    const AttentionLayer<KV>& layer_;
    const AttentionSchedule& plan_;
    const AttentionUnit& unit_;
    const AttentionUnit* next_;
    AttentionScratch<KV>& scratch_;
    int group_, states_, size_;
};

// Hands out the units of one layer: of T threads, thread t gets t, t + T, ..., and then those that others have not begun.
class UnitDeal {
   public:
    void reset(int threads) {
        if (static_cast<int>(dealt_.size()) < threads) dealt_ = std::vector<Count>(threads);
        for (Count& count : dealt_) count.value = 0;
    }

    // The next of `count` units for a thread, or -1.
    int take(const Member& member, int count) {
        for (int i = 0; i < member.threads; i++) {
            const int owner = (member.thread + i) % member.threads;
            const int unit = owner + member.threads * dealt_[owner].value++;
            if (unit < count) return unit;
        }
        return -1;
    }

   private:
    struct alignas(64) Count {
        std::atomic<int> value{0};
    };
    std::vector<Count> dealt_;
};

// Computes units until none is left.
template <class KV>
void attend_units(const AttentionLayer<KV>& layer, const AttentionSchedule& plan, UnitDeal& deal, const Member& member,
                  AttentionScratch<KV>& scratch) {
    const int count = static_cast<int>(plan.units.size());
    int next = deal.take(member, count);
    for (int i = next; i >= 0; i = next) {
        next = deal.take(member, count);
        const AttentionUnit* next_unit = next >= 0 ? &plan.units[next] : nullptr;
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
