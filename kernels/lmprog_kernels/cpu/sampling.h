// Tokens and log-probabilities from rows of logits. Every row is computed by one thread, so it depends on nothing else.
#pragma once

#include <optional>

#include "blocked_row.h"

namespace lmk {

// One of 2^53 numbers in [0, 1): number `draw` of a request's own sequence. Source: SplitMix64 (Steele et al., 2014), its
// output function applied to a counter.
inline double uniform_of(const LmkSampleRow& row) {
    uint64_t bits = row.sequence + row.draw + 0x9e3779b97f4a7c15u;
    bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9u;
    bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebu;
    return static_cast<double>((bits ^ (bits >> 31)) >> 11) * 0x1p-53;
}

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
    static constexpr float kLowest = std::numeric_limits<float>::lowest();

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
        set_temperature(row.temperature);
        const bool is_filtered = row.top_p < 1.0 || row.min_p > 0.0 || (row.top_k > 0 && row.top_k < vocab);
        return is_filtered ? draw_kept(row, vocab) : draw_any(uniform_of(row));
    }

    // Scaled values are logarithms to base 2; a weight is 2 to their power.
    void set_temperature(float temperature) { scale_ = std::min(kLog2E / temperature, std::numeric_limits<float>::max()); }
    float scaled(float value) const { return (value - values_.top) * scale_; }
    Floats scaled(Floats values) const { return mul(sub(values, broadcast(values_.top)), broadcast(scale_)); }
    static Floats weights_of_scaled(Floats x) { return exp2(max(x, broadcast(-1000.0f))); }  // 0 far above infinity

    // Fills weights_, and sums_ with their running sum at the end of each block. All sums that decide are double
    // precision, but for those of four lanes of a block: they lose less than the weights' own rounding.
    double sum_weights() {
        sums_.resize(values_.blocks);
        weights_.resize(static_cast<size_t>(values_.blocks) * kBlock);
        double total = 0.0;
        for (int b = 0; b < values_.blocks; b++) {
            float* out = weights_.data() + b * kBlock;
            if (values_.top_of(b) > kNever) {
                total += sum_block(values_.block(b), out);
            } else {
                std::fill(out, out + kBlock, 0.0f);
            }
            sums_[b] = total;
        }
        return total;
    }

    double sum_block(const float* values, float* out) const {
        DoubleSum sum;
        for (int i = 0; i < kBlock; i += 4 * kLanes) {
            Floats weights[4];
#pragma GCC unroll 4
            for (int k = 0; k < 4; k++) {
                weights[k] = weights_of_scaled(scaled(load(values + i + k * kLanes)));
                store(out + i + k * kLanes, weights[k]);
            }
            sum.add(add(add(weights[0], weights[1]), add(weights[2], weights[3])));
        }
        return sum.total();
    }

    int draw_any(double uniform) {
        const double total = sum_weights(), target = std::min(uniform * total, std::nextafter(total, 0.0));
        const int block = static_cast<int>(std::upper_bound(sums_.begin(), sums_.end(), target) - sums_.begin());
        const double before = block > 0 ? sums_[block - 1] : 0.0;
        return block * kBlock + invert(weights_.data() + block * kBlock, kBlock, target - before);
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

    // Every filter keeps a prefix of the columns in falling order: those above a bound are looked at.
    int draw_kept(const LmkSampleRow& row, int vocab) {
        std::optional<double> limit;  // of the running sum, where it does not depend on top_k
        if (row.top_k <= 0 && row.top_p < 1.0) limit = row.top_p * sum_weights();
        collect_scaled(row.top_k > 0 ? scaled(values_.reached_by(row.top_k)) : bound_that_suffices(row, limit, vocab));
        return entries_[draw_entry(count_kept(row, limit), uniform_of(row))].column;
    }

    // A scaled value below all that top_p and min_p keep, and hardly more.
    float bound_that_suffices(const LmkSampleRow& row, std::optional<double> limit, int vocab) {
        const float least = row.min_p > 0.0 ? static_cast<float>(std::log2(row.min_p)) - 1e-3f : kNever;
        return limit ? std::max(least, bound_of_mass(*limit * (1.0 + 1e-4), vocab)) : least;
    }

    // By bisection, from where all columns together weigh no more than what may be left out: seven passes over ever fewer
    // blocks take 2 us where sorting 49,152 columns takes 500.
    float bound_of_mass(double mass, int vocab) {
        const double rest = sums_.back() - mass;
        if (rest < sums_.back() * 1e-6) return kNever;
        float low = static_cast<float>(std::log2(rest / vocab)), high = 0.0f;
        for (int i = 0; i < 7; i++) {
            const float middle = (low + high) / 2.0f;
            (mass_above(middle) < static_cast<float>(mass) ? high : low) = middle;
        }
        return low - 1e-3f;
    }

    // Sum of the weights of scaled values of at least `bound`, to six digits.
    float mass_above(float bound) {
        const Floats least = broadcast(std::exp2(bound));
        Floats sums[2] = {zero(), zero()};
        find_blocks([this](Floats values) { return scaled(values); }, bound);
        for (const int b : found_) {
            const float* weights = weights_.data() + static_cast<size_t>(b) * kBlock;
#pragma GCC unroll 4
            for (int i = 0; i < kBlock; i += 2 * kLanes) {
                sums[0] = add(sums[0], keep_at_least(load(weights + i), least));
                sums[1] = add(sums[1], keep_at_least(load(weights + i + kLanes), least));
            }
        }
        return sum(add(sums[0], sums[1]));
    }

    // entries_: all columns of at least `bound`, by falling scaled value; kept_weights_: their weights.
    void collect_scaled(float bound) {
        collect([this](auto value) { return scaled(value); }, bound);
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
        const Floats least = broadcast(std::max(bound, kLowest));
        find_blocks(change, bound);
        for (const int b : found_) {
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

    // found_: the blocks that reach `bound`, in order.
    template <class Change>
    void find_blocks(const Change& change, float bound) {
        found_.clear();
        const Floats least = broadcast(std::max(bound, kLowest));
        for (int b = 0; b < values_.blocks; b += kLanes) {
            uint32_t reached = at_least(change(values_.tops_from(b)), least);
            for (; reached; reached &= reached - 1) found_.push_back(b + __builtin_ctz(reached));
        }
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
        collect([](auto value) { return value; }, values_.reached_by(row.num_top));
        row.found_top = std::min(row.num_top, static_cast<int>(entries_.size()));
        for (int i = 0; i < row.found_top; i++) {
            row.top_ids[i] = entries_[i].column;
            row.top_logprobs[i] = entries_[i].value - normaliser;
        }
    }

    float log_sum() {
        if (values_.has_nan) return std::numeric_limits<float>::quiet_NaN();
        if (!std::isfinite(values_.top)) return values_.top;
        set_temperature(1.0f);
        return values_.top + static_cast<float>(std::log(sum_weights()));
    }

    float scale_ = kLog2E;
    BlockedRow values_;
    FallingOrder order_;
    Buffer<float> changed_;
    std::vector<double> sums_;
    std::vector<int> found_;
    std::vector<Entry> entries_;
    std::vector<float> weights_, kept_weights_;
};

}  // namespace lmk
