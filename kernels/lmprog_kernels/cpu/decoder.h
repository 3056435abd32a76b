// One step of a decoder of the Llama family on a packed batch of rows. See lmprog_runtime's ModelSpec for the equations.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <vector>

#include "attention.h"
#include "linear.h"
#include "norm_rope.h"
#include "team.h"

namespace lmk {

// Where the time of steps goes, as thread 0 sees it.
enum Phase { kEmbed, kNorm, kQkv, kRope, kAttend, kMerge, kOutput, kGateUp, kDown, kHead, kPhases };

class Stopwatch {
   public:
    explicit Stopwatch(double* seconds) : seconds_(seconds) {
        if (seconds_) last_ = Clock::now();
    }
    void lap(Phase phase) {
        if (!seconds_) return;
        const Clock::time_point now = Clock::now();
        seconds_[phase] += std::chrono::duration<double>(now - last_).count();
        last_ = now;
    }

   private:
    using Clock = std::chrono::steady_clock;
    double* seconds_;
    Clock::time_point last_;
};

class Decoder {
   public:
    virtual ~Decoder() = default;
    virtual void step(const LmkStep& step, int threads, double* phase_seconds) = 0;
};

// KV: float, bf16 (uint16_t) or int8_t elements of the pool.
template <class KV>
class DecoderOf : public Decoder {
   public:
    explicit DecoderOf(const LmkModel& model)
        : model_(model), layers_(model.layers, model.layers + model.num_layers),
          ropes_(model.ropes, model.ropes + model.num_ropes), rotations_(model.num_ropes), deals_(model.num_layers),
          group_(model.num_heads / model.num_kv_heads) {
        model_.layers = layers_.data();
        model_.ropes = ropes_.data();
        for (const LmkLayer& layer : layers_) schedule_of_.push_back(schedule_for(layer.window));
    }

    void step(const LmkStep& step, int threads, double* phase_seconds) override {
        threads = limit_.apply(threads);
        prepare(step, threads);
        const auto start = std::chrono::steady_clock::now();
        const double slept = run_team(threads, [&](const Member& member) {
            Stopwatch watch(member.thread == 0 ? phase_seconds : nullptr);
            run(step, member, watch);
        });
        limit_.observe(threads, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), slept);
    }

   private:
    using Query = QueryOf<KV>;
    static constexpr int kFirstLines = 64;  // of the next matrix, fetched while the threads gather
    // Per thread and thread: so much arithmetic that all threads can read all the weights meanwhile. Measured with two.
    static constexpr int kRowsToSplit = 12;

    struct ThreadScratch {
        Buffer<float> row;
        Buffer<float> staging;
        AttentionScratch<KV> attention;
        KeysAhead keys_ahead;
    };

    int schedule_for(int window) {
        for (size_t i = 0; i < windows_.size(); i++) {
            if (windows_[i] == window) return static_cast<int>(i);
        }
        windows_.push_back(window);
        schedules_.emplace_back();
        return static_cast<int>(windows_.size()) - 1;
    }

    int mixed_size() const { return model_.num_heads * model_.head_size; }
    int qkv_size() const { return (model_.num_heads + 2 * model_.num_kv_heads) * model_.head_size; }

    void prepare(const LmkStep& step, int threads) {
        const PlanView plan{reinterpret_cast<const PlanItem*>(step.items), step.num_items, step.key_slots, step.positions,
                            step.num_rows};
        splits_rows_ = threads > 1 && step.num_rows >= kRowsToSplit * threads * threads;
        const int64_t ahead = rows_ahead(step.num_rows, threads);
        int partials = 0;
        for (size_t i = 0; i < windows_.size(); i++) {
            schedules_[i].build(plan, {windows_[i], group_, model_.num_kv_heads, threads, ahead});
            partials = std::max(partials, schedules_[i].num_partials);
        }
        reserve(step.num_rows, step.num_outputs, partials);
        while (static_cast<int>(scratch_.size()) < threads) scratch_.push_back(std::make_unique<ThreadScratch>());
        const int staged = layers_.front().down.format >= LMK_INT8 ? step.num_rows * kGroup : 0;
        for (const auto& scratch : scratch_) {
            scratch->staging.reserve(staged);
            scratch->row.reserve(std::max(model_.hidden_size, model_.head_size));
            scratch->attention.reserve(most_states(group_, model_.num_kv_heads), model_.head_size);
        }
        for (UnitDeal& deal : deals_) deal.reset(threads);
    }

    // Rows of the pool that a thread can fetch during the products of a layer. Half of the third-level cache is for them;
    // the other half holds the layer's weights, if it can.
    int64_t rows_ahead(int rows, int threads) const {
        static const int64_t cached = third_level_bytes() / 2;
        int64_t bytes = cached;
        for (const LmkLayer& layer : layers_) bytes = std::min(bytes, 64 * spare_lines(layer, rows));
        return bytes / threads / static_cast<int64_t>(kv_shape().stride() * sizeof(KV));
    }

    static int64_t spare_lines(const LmkLayer& layer, int rows) {
        int64_t lines = 0;
        for (const LmkLinear* linear : {&layer.qkv, &layer.output, &layer.gate_up, &layer.down}) {
            lines += lmk::spare_lines(*linear, rows);
        }
        return lines;
    }

    void reserve(int rows, int outputs, int partials) {
        const size_t n = rows, states = static_cast<size_t>(partials) * model_.num_heads;
        hidden_.reserve(n * model_.hidden_size);
        branch_.reserve(n * model_.hidden_size);
        qkv_.reserve(n * qkv_size());
        queries_.reserve(n * mixed_size());
        partial_values_.reserve(states * model_.head_size);
        partial_tops_.reserve(states);
        partial_totals_.reserve(states);
        for (int i = 0; i < model_.num_ropes; i++) rotations_[i].reserve(n * 2 * ropes_[i].pairs);
        // Linear layers of one kind take inputs of one type throughout the model, be they int8 or int4.
        const LmkLayer& layer = layers_.front();
        attention_inputs_ = attention_buffer_.resize(rows, model_.hidden_size, layer.qkv.format);
        mixed_ = mixed_buffer_.resize(rows, mixed_size(), layer.output.format);
        mlp_inputs_ = mlp_buffer_.resize(rows, model_.hidden_size, layer.gate_up.format);
        gated_ = gated_buffer_.resize(rows, model_.inner_size, layer.down.format);
        head_inputs_ = head_buffer_.resize(outputs, model_.hidden_size, model_.head.format);
    }

    // ---- phases. Few rows are computed by all threads together, each with its share of the weights, which are read
    // once; the threads meet after every phase. Many rows are split among the threads: each takes its own through the
    // products with all the weights, in its own cache, and meets the others for attention only.

    // Those who compute some rows together: all threads, or one of them alone.
    struct Crew {
        Share rows;
        Member member;  // this thread in it
        ThreadScratch* scratch;

        Share own_rows() const { return Share::of(rows, member.thread, member.threads); }
        void meet() const { member.wait(); }
    };

    Crew crew_of(const Member& member, int rows) const {
        ThreadScratch* scratch = scratch_[member.thread].get();
        if (!splits_rows_) return {{0, rows}, member, scratch};
        return {Share::of(rows, member.thread, member.threads), {0, 1, member.barrier}, scratch};
    }

    void run(const LmkStep& step, const Member& member, Stopwatch& watch) {
        const Crew crew = crew_of(member, step.num_rows);
        embed(step, crew);
        watch.lap(kEmbed);
        for (int layer = 0; layer < model_.num_layers; layer++) {
            before_attention(step, layer, crew, watch);
            if (splits_rows_) member.wait();
            attend(layer, member, watch);
            after_attention(layer, crew, watch);
        }
        if (splits_rows_) member.wait();
        logits(step, member);
        watch.lap(kHead);
    }

    void embed(const LmkStep& step, const Crew& crew) {
        const Share share = crew.own_rows();
        for (int row = share.begin; row < share.end; row++) {
            embed_token(step.tokens[row], hidden_.data() + static_cast<size_t>(row) * model_.hidden_size);
            for (int i = 0; i < model_.num_ropes; i++) {
                rotation(ropes_[i], step.positions[row], rotation_of(i, row));
            }
        }
        crew.meet();
    }

    void embed_token(int32_t token, float* out) const {
        const size_t start = static_cast<size_t>(token) * model_.hidden;
        for (int i = 0; i < model_.hidden; i++) {
            float value;
            if (model_.embedding_format == LMK_FLOAT32) {
                value = static_cast<const float*>(model_.embedding)[start + i];
            } else {
                const uint32_t bits = static_cast<uint32_t>(static_cast<const uint16_t*>(model_.embedding)[start + i]) << 16;
                std::memcpy(&value, &bits, sizeof value);
            }
            out[i] = value * model_.embedding_scale;
        }
    }

    void before_attention(const LmkStep& step, int index, const Crew& crew, Stopwatch& watch) {
        const LmkLayer& layer = layers_[index];
        norm_rows(layer.input_norm, attention_inputs_, crew);
        watch.lap(kNorm);
        linear(layer.qkv, attention_inputs_, store_to(qkv_.data(), qkv_size()), layer.output, crew);
        watch.lap(kQkv);
        store_heads(step, index, crew);
        watch.lap(kRope);
    }

    void after_attention(int index, const Crew& crew, Stopwatch& watch) {
        const LmkLayer& layer = layers_[index];
        add_branch(layer.output, mixed_, layer.attention_post_norm, layer.gate_up, crew);
        watch.lap(kOutput);
        norm_rows(layer.mlp_norm, mlp_inputs_, crew);
        watch.lap(kNorm);
        linear(layer.gate_up, mlp_inputs_, gate_to(gated_, crew), layer.down, crew);
        watch.lap(kGateUp);
        const LmkLinear& next = index + 1 < model_.num_layers ? layers_[index + 1].qkv : model_.head;
        add_branch(layer.down, gated_, layer.mlp_post_norm, next, crew);
        watch.lap(kDown);
    }

    void norm_rows(const float* weight, const Inputs& out, const Crew& crew) {
        const Share share = crew.own_rows();
        for (int row = share.begin; row < share.end; row++) norm(weight, out, row, row, crew.scratch->row.data());
        crew.meet();
    }

    // Hidden row `row` to row `to` of `out`.
    void norm(const float* weight, const Inputs& out, int row, int to, float* scratch) const {
        rms_norm(hidden_.data() + static_cast<size_t>(row) * model_.hidden_size, weight, model_.hidden,
                 model_.hidden_size, model_.norm_eps, scratch);
        put(out, to, 0, scratch, model_.hidden_size);
    }

    // `next`: the matrix that comes after this one.
    void linear(const LmkLinear& linear, const Inputs& inputs, const Epilogue& epilogue, const LmkLinear& next,
                const Crew& crew) {
        const Share next_panels = Share::of(next.rows / kPanel, crew.member.thread, crew.member.threads);
        const char* next_data = static_cast<const char*>(next.panels) + next_panels.begin * panel_bytes(next);
        linear_layer(linear, inputs, epilogue, part_of(linear, epilogue, crew.rows, crew.member), next_data,
                     crew.scratch->keys_ahead);
        for (int i = 0; i < kFirstLines; i++) prefetch(next_data + 64 * i);
        crew.meet();
    }

    // hidden += linear(inputs), normed in between where the model has a norm there.
    void add_branch(const LmkLinear& weights, const Inputs& inputs, const float* post_norm, const LmkLinear& next,
                    const Crew& crew) {
        const int size = model_.hidden_size;
        if (!post_norm) {
            return linear(weights, inputs, {Epilogue::kAdd, hidden_.data(), size, size, model_.residual_scale, 0.0f}, next,
                          crew);
        }
        linear(weights, inputs, store_to(branch_.data(), size), next, crew);
        const Share share = crew.own_rows();
        for (int row = share.begin; row < share.end; row++) {
            const size_t at = static_cast<size_t>(row) * size;
            add_normed(hidden_.data() + at, branch_.data() + at, post_norm, model_.hidden, size, model_.norm_eps,
                       model_.residual_scale, crew.scratch->row.data());
        }
        crew.meet();
    }

    Epilogue store_to(float* out, int columns) const { return {Epilogue::kStore, out, columns, columns, 1.0f, 0.0f}; }
    Epilogue gate_to(const Inputs& gated, const Crew& crew) const {
        return {Epilogue::kGate, nullptr, 0, 0, 1.0f, 0.0f, model_.gate, gated, crew.scratch->staging.data()};
    }

    float* rotation_of(int rope, int row) const {
        return rotations_[rope].data() + static_cast<size_t>(row) * 2 * ropes_[rope].pairs;
    }
    KvShape<KV> kv_shape() const { return {model_.num_kv_heads, model_.head_size}; }
    KV* layer_kv(int layer) const {
        return static_cast<KV*>(model_.kv) + static_cast<size_t>(layer) * model_.num_slots * kv_shape().stride();
    }

    // Queries into their buffer, keys and values into the pool.
    void store_heads(const LmkStep& step, int index, const Crew& crew) {
        const int heads = model_.num_heads + 2 * model_.num_kv_heads;
        const Share all{crew.rows.begin * heads, crew.rows.end * heads};
        const Share share = Share::of(all, crew.member.thread, crew.member.threads);
        for (int i = share.begin; i < share.end; i++) {
            store_head(step, index, i / heads, i % heads, crew.scratch->row.data());
        }
        crew.meet();
    }

    void store_head(const LmkStep& step, int index, int row, int head, float* out) {
        const LmkLayer& layer = layers_[index];
        const int size = model_.head_size, kv_head = head - model_.num_heads;
        const bool is_query = kv_head < 0, is_value = kv_head >= model_.num_kv_heads;
        const bool has_rope = layer.rope >= 0 && !is_value;
        transform_head(qkv_.data() + static_cast<size_t>(row) * qkv_size() + head * size, head_shape(),
                       is_value ? nullptr : is_query ? layer.q_norm : layer.k_norm,
                       has_rope ? rotation_of(layer.rope, row) : nullptr, has_rope ? ropes_[layer.rope].pairs : 0,
                       is_query ? query_factor() : 1.0f, out);
        if (is_query) {
            store_as(queries_.data() + (static_cast<size_t>(row) * model_.num_heads + head) * size, out, size);
        } else {
            KV* token = layer_kv(index) + static_cast<size_t>(step.slots[row]) * kv_shape().stride();
            store_kv(kv_shape(), token, kv_head, out);
        }
    }

    HeadShape head_shape() const { return {model_.head_dim, model_.head_size, model_.norm_eps}; }
    float query_factor() const { return model_.attention_scale * (model_.attention_softcap > 0.0f ? 1.0f : kLog2E); }

    void attend(int index, const Member& member, Stopwatch& watch) {
        const AttentionSchedule& plan = schedules_[schedule_of_[index]];
        const AttentionLayer<KV> layer{queries_.data(),       layer_kv(index),     model_.num_heads,
                                       model_.num_kv_heads,   model_.head_size,    model_.attention_softcap,
                                       mixed_,                partial_values_.data(), partial_tops_.data(),
                                       partial_totals_.data(), index > 0};
        attend_units(layer, plan, deals_[index], member, scratch_[member.thread]->attention);
        aim_keys(index + 1, member);
        member.wait();
        watch.lap(kAttend);
        if (plan.merged_rows.empty()) return;
        merge_rows(layer, plan, member, scratch_[member.thread]->attention);
        member.wait();
        watch.lap(kMerge);
    }

    // What the products fetch from here on: keys of layer `index`, if there is one.
    void aim_keys(int index, const Member& member) {
        KeysAhead& keys = scratch_[member.thread]->keys_ahead;
        if (index == model_.num_layers) return keys.stop();
        keys.aim(reinterpret_cast<const char*>(layer_kv(index)), kv_shape().stride() * sizeof(KV),
                 schedules_[schedule_of_[index]].ahead[member.thread]);
    }

    void logits(const LmkStep& step, const Member& member) {
        const Crew crew{{0, step.num_outputs}, member, scratch_[member.thread].get()};
        const Share share = crew.own_rows();
        for (int i = share.begin; i < share.end; i++) {
            norm(model_.final_norm, head_inputs_, step.logit_rows[i], i, crew.scratch->row.data());
        }
        crew.meet();
        const Epilogue out{Epilogue::kStore,   step.logits,        model_.vocab_size,
                           model_.vocab_size, model_.logit_scale, model_.logit_softcap};
        linear(model_.head, head_inputs_, out, layers_.front().qkv, crew);
    }

    LmkModel model_;
    ThreadLimit limit_;
    bool splits_rows_ = false;
    std::vector<LmkLayer> layers_;
    std::vector<LmkRope> ropes_;
    std::vector<Buffer<float>> rotations_;  // per rope: [rows, 2, pairs]
    std::vector<UnitDeal> deals_;  // by layer
    int group_;
    std::vector<int> windows_, schedule_of_;
    std::vector<AttentionSchedule> schedules_;
    std::vector<std::unique_ptr<ThreadScratch>> scratch_;
    Buffer<float> hidden_, branch_, qkv_, partial_values_, partial_tops_, partial_totals_;
    Buffer<Query> queries_;
    InputBuffer attention_buffer_, mixed_buffer_, mlp_buffer_, gated_buffer_, head_buffer_;
    Inputs attention_inputs_{}, mixed_{}, mlp_inputs_{}, gated_{}, head_inputs_{};
};

}  // namespace lmk
