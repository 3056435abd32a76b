// Tokens and log-probabilities from rows of logits. Every row is computed by one thread, so it depends on nothing else.
#pragma once

#include <optional>

#include "blocked_row.h"

namespace lmk {

class RowSampler {
   public:
    void choose(const float* logits, int vocab, LmkSampleRow& row) {
        read(logits, vocab, row);
        row.token = -1;
        if (values_.has_nan || !std::isfinite(values_.top)) return;
        row.token = row.temperature > 0.0f ? draw(vocab, row) : values_.top_column();
        if (!row.wants_logprob) return;
        if (is_changed(row)) values_.read(logits, vocab);
        note_logprobs(logits, row);
    }

    void score(LmkScoreRow& row, int vocab) {
        values_.read(row.logits, vocab);
        note_logprobs(row.logits, row);
    }

   private:
    static bool has_edits(const LmkSampleRow& row) { return row.num_biases || row.num_seen || row.num_counts; }
    static bool is_changed(const LmkSampleRow& row) { return row.mask || has_edits(row); }

    void read(const float* logits, int vocab, const LmkSampleRow& row) {
        if (!is_changed(row)) return values_.read(logits, vocab);
        changed_.reserve(vocab);
        const float* source = logits;
        if (has_edits(row)) {
            std::copy(logits, logits + vocab, changed_.data());
            edit(row, changed_.data());
            source = changed_.data();
        }
        if (!row.mask) return values_.read(source, vocab);
        values_.read_masked(source, vocab, row.mask, row.mask_words, changed_.data());
    }

    static void edit(const LmkSampleRow& row, float* logits) {
        for (int i = 0; i < row.num_biases; i++) logits[row.bias_ids[i]] += row.biases[i];
        for (int i = 0; i < row.num_seen; i++) {
            float& x = logits[row.seen_ids[i]];
            x = x > 0.0f ? x / row.repetition : x * row.repetition;
        }
        for (int i = 0; i < row.num_counts; i++) {
            logits[row.count_ids[i]] -= row.counts[i] * row.frequency + row.presence;
        }
    }

    int draw(int vocab, const LmkSampleRow& row) {
        temperature_ = row.temperature;
        const bool is_filtered = row.top_p < 1.0 || row.min_p > 0.0 || (row.top_k > 0 && row.top_k < vocab);
        return is_filtered ? draw_kept(row) : draw_any(row.uniform);
    }

    float scaled(float value) const { return (value - values_.top) / temperature_; }
    Floats scaled(Floats values) const { return div(sub(values, broadcast(values_.top)), broadcast(temperature_)); }
    Floats weights(Floats values) const { return weights_of_scaled(scaled(values)); }
    static Floats weights_of_scaled(Floats x) { return exp(max(x, broadcast(-1000.0f))); }  // 0 far above infinity

    // Fills sums_ with the running sum at the end of each block. A weight is exp(scaled value); all sums of weights are double precision.
    double sum_weights() {
        sums_.resize(values_.blocks);
        double total = 0.0;
        for (int b = 0; b < values_.blocks; b++) {
            if (values_.top_of(b) > kNever) {
                DoubleSum sum;
                for (int i = 0; i < kBlock; i += kLanes) sum.add(weights(load(values_.block(b) + i)));
                total += sum.total();
            }
            sums_[b] = total;
        }
        return total;
    }

    int draw_any(double uniform) {
        const double total = sum_weights(), target = std::min(uniform * total, std::nextafter(total, 0.0));
        const int block = static_cast<int>(std::upper_bound(sums_.begin(), sums_.end(), target) - sums_.begin());
        float weights_of_block[kBlock];
        for (int i = 0; i < kBlock; i += kLanes) store(weights_of_block + i, weights(load(values_.block(block) + i)));
        return block * kBlock + invert(weights_of_block, kBlock, target - (block > 0 ? sums_[block - 1] : 0.0));
    }

    // First weight whose running sum passes the target, if need be the last that is not 0.
    static int invert(const float* weights, int count, double target) {
        double sum = 0.0;
        int last = 0;
        for (int i = 0; i < count; i++) {
            sum += weights[i];
            if (sum > target) return i;
            if (weights[i] > 0.0f) last = i;
        }
        return last;
    }

    // Every filter keeps a prefix of the columns in falling order, so a few of the largest mostly suffice.
    int draw_kept(const LmkSampleRow& row) {
        constexpr int kFew = 64;
        const std::optional<double> limit = mass_limit(row);
        collect_scaled(scaled(values_.reached_by(row.top_k > 0 ? row.top_k : kFew)));
        int kept = count_kept(row, limit);
        if (kept == static_cast<int>(entries_.size()) && row.top_k <= 0) {
            collect_scaled(bound_that_suffices(row, limit));
            kept = count_kept(row, limit);
        }
        return entries_[draw_entry(kept, row.uniform)].column;
    }

    // What the running sum may reach, where that does not depend on top_k.
    std::optional<double> mass_limit(const LmkSampleRow& row) {
        if (row.top_k > 0 || row.top_p >= 1.0) return std::nullopt;
        return row.top_p * sum_weights();
    }

    // A scaled value below all that top_p and min_p keep, and hardly more.
    float bound_that_suffices(const LmkSampleRow& row, std::optional<double> limit) {
        const float least = row.min_p > 0.0 ? static_cast<float>(std::log(row.min_p)) - 1e-3f : kNever;
        return limit ? std::max(least, bound_of_mass(*limit * (1.0 + 1e-9))) : least;
    }

    // By a histogram over the logarithms of the weights: sorting the whole vocabulary takes ten times as long.
    float bound_of_mass(double mass) const {
        constexpr int kBins = 1024;
        constexpr float kPerUnit = 16.0f;
        double bins[kBins] = {};
        for (int b = 0; b < values_.blocks; b++) {
            if (values_.top_of(b) == kNever) continue;
            alignas(64) float weight[kBlock], place[kBlock];
            for (int i = 0; i < kBlock; i += kLanes) {
                const Floats x = scaled(load(values_.block(b) + i));
                store(weight + i, weights_of_scaled(x));
                store(place + i, min(mul(x, broadcast(-kPerUnit)), broadcast(kBins - 1.0f)));
            }
            for (int i = 0; i < kBlock; i++) bins[static_cast<int>(place[i])] += weight[i];
        }
        for (int bin = 0; bin < kBins - 1; bin++) {
            mass -= bins[bin];
            if (mass <= 0.0) return static_cast<float>(bin + 1) / -kPerUnit;
        }
        return kNever;
    }

    // entries_: all columns of at least `bound`, by falling scaled value; kept_weights_: their weights.
    void collect_scaled(float bound) {
        collect([this](Floats values) { return scaled(values); }, bound);
        const size_t size = entries_.size();
        kept_weights_.resize(size + kLanes);
        for (size_t i = 0; i < size; i++) kept_weights_[i] = entries_[i].value;
        for (size_t i = 0; i < size; i += kLanes) {
            store(kept_weights_.data() + i, weights_of_scaled(load(kept_weights_.data() + i)));
        }
    }

    template <class Change>
    void collect(const Change& change, float bound) {
        entries_.clear();
        const Floats least = broadcast(std::max(bound, std::numeric_limits<float>::lowest()));
        for (int b = 0; b < values_.blocks; b++) {
            if (values_.top_of(b) == kNever) continue;
            for (int i = 0; i < kBlock; i += kLanes) {
                const Floats x = change(load(values_.block(b) + i));
                uint32_t found = at_least(x, least);
                if (!found) continue;
                float lanes[kLanes];
                store(lanes, x);
                for (; found; found &= found - 1) {
                    const int lane = __builtin_ctz(found);
                    entries_.push_back({lanes[lane], b * kBlock + i + lane});
                }
            }
        }
        order_.sort(entries_);
    }

    int count_kept(const LmkSampleRow& row, std::optional<double> limit) const {
        const int size = static_cast<int>(entries_.size()), most = row.top_k > 0 ? std::min(row.top_k, size) : size;
        if (!limit && row.top_p < 1.0) {
            double total = 0.0;
            for (int i = 0; i < most; i++) total += kept_weights_[i];
            limit = row.top_p * total;
        }
        double before = 0.0;
        for (int i = 0; i < most; i++) {
            if ((limit && before >= *limit) || kept_weights_[i] < row.min_p) return i;
            before += kept_weights_[i];
        }
        return most;
    }

    int draw_entry(int kept, double uniform) const {
        double total = 0.0;
        for (int i = 0; i < kept; i++) total += kept_weights_[i];
        return invert(kept_weights_.data(), kept, std::min(uniform * total, std::nextafter(total, 0.0)));
    }

    // values_ must be the logits as they are.
    template <class Row>
    void note_logprobs(const float* logits, Row& row) {
        const float normaliser = log_sum();
        row.logprob = logits[row.token] - normaliser;
        row.found_top = 0;
        if (row.num_top == 0) return;
        collect([](Floats values) { return values; }, values_.reached_by(row.num_top));
        row.found_top = std::min(row.num_top, static_cast<int>(entries_.size()));
        for (int i = 0; i < row.found_top; i++) {
            row.top_ids[i] = entries_[i].column;
            row.top_logprobs[i] = entries_[i].value - normaliser;
        }
    }

    float log_sum() {
        if (values_.has_nan) return std::numeric_limits<float>::quiet_NaN();
        if (!std::isfinite(values_.top)) return values_.top;
        temperature_ = 1.0f;
        return values_.top + static_cast<float>(std::log(sum_weights()));
    }

    float temperature_ = 1.0f;
    BlockedRow values_;
    FallingOrder order_;
    Buffer<float> changed_;
    std::vector<double> sums_;
    std::vector<Entry> entries_;
    std::vector<float> kept_weights_;
};

}  // namespace lmk
