// A row of logits in blocks of 64 columns, with the largest of each block: what searches and sums skip blocks by.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "buffers.h"

namespace lmk {

constexpr int kBlock = 64;  // two words of a mask
constexpr float kNever = -std::numeric_limits<float>::infinity();  // logit of a token that is not allowed

// A column and its value.
struct Entry {
    float value;
    int32_t column;
};

// Sorts by falling value, equal ones by column; the entries must come in the order of their columns.
class FallingOrder {
   public:
    void sort(std::vector<Entry>& entries) {
        if (entries.size() <= kFew) {
            std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
                return a.value != b.value ? a.value > b.value : a.column < b.column;
            });
            return;
        }
        for (int shift = 0; shift < 32; shift += kDigit) pass(entries, shift);
    }

   private:
    static constexpr size_t kFew = 256;
    static constexpr int kDigit = 11;

    // Unsigned numbers that rise as values fall.
    static uint32_t key(float value) {
        value += 0.0f;  // -0 is 0
        uint32_t bits;
        std::memcpy(&bits, &value, sizeof bits);
        return bits >> 31 ? bits : ~(bits | 0x80000000u);
    }

    // One digit of a radix sort: stable, three passes of 0.1 ms for 49,152 entries, where std::sort takes 3 ms.
    void pass(std::vector<Entry>& entries, int shift) {
        constexpr uint32_t kMask = (1u << kDigit) - 1;
        uint32_t starts[kMask + 2] = {};
        for (const Entry& entry : entries) starts[(key(entry.value) >> shift & kMask) + 1]++;
        for (uint32_t i = 0; i < kMask; i++) starts[i + 1] += starts[i];
        sorted_.resize(entries.size());
        for (const Entry& entry : entries) sorted_[starts[key(entry.value) >> shift & kMask]++] = entry;
        entries.swap(sorted_);
    }

    std::vector<Entry> sorted_;
};

class BlockedRow {
   public:
    float top = kNever;    // the largest value
    bool has_nan = false;  // among the allowed columns
    int blocks = 0;

    // `values` [count] are kept by reference.
    void read(const float* values, int count) {
        start(values, count);
        for (int b = 0; b < blocks; b++) note(b, block(b));
    }

    // mask: as in LmkSampleRow; what it forbids becomes kNever. The values are then kept in `masked` [count], which may
    // be `values`; blocks of which nothing is allowed are left undefined there.
    void read_masked(const float* values, int count, const uint32_t* mask, int mask_words, float* masked) {
        start(values, count);
        for (int b = 0; b < blocks; b++) {
            const uint64_t allowed = bits_of_block(mask, mask_words, b);
            if (!allowed) continue;
            float* kept = b < whole_ ? masked + b * kBlock : tail_;
            for (int i = 0; i < kBlock; i += kLanes) {
                const auto bits = static_cast<uint32_t>(allowed >> i);
                store(kept + i, choose(bits, load(block(b) + i), broadcast(kNever)));
            }
            note(b, kept);
        }
        values_ = masked;
    }

    float top_of(int block) const { return tops_[block]; }

    // Those of kLanes blocks, kNever past the last.
    Floats tops_from(int block) const { return load(tops_.data() + block); }

    // Values of a block, kNever past the end; undefined where top_of is kNever.
    const float* block(int b) const { return b < whole_ ? values_ + b * kBlock : tail_; }

    // First column of the largest value.
    int top_column() const {
        const int b = static_cast<int>(std::find(tops_.begin(), tops_.end(), top) - tops_.begin());
        return b * kBlock + static_cast<int>(std::find(block(b), block(b) + kBlock, top) - block(b));
    }

    // A value that at least `count` columns reach; kNever if no better one is known.
    float reached_by(int count) {
        if (count >= blocks) return kNever;
        ranked_ = tops_;
        std::nth_element(ranked_.begin(), ranked_.begin() + (count - 1), ranked_.end(), std::greater<float>());
        return ranked_[count - 1];
    }

   private:
    void start(const float* values, int count) {
        values_ = values;
        whole_ = count / kBlock;
        blocks = (count + kBlock - 1) / kBlock;
        tops_.assign((blocks + kLanes - 1) / kLanes * kLanes, kNever);
        std::fill(std::copy(values + whole_ * kBlock, values + count, tail_), tail_ + kBlock, kNever);
        top = kNever;
        has_nan = false;
    }

    void note(int b, const float* values) {
        Floats largest = broadcast(kNever);
        uint32_t found = 0;
        for (int i = 0; i < kBlock; i += kLanes) {
            const Floats x = load(values + i);
            found |= nans(x);
            largest = max(x, largest);  // the second, if the first is not a number
        }
        tops_[b] = maximum(largest);
        top = std::max(top, tops_[b]);
        has_nan = has_nan || found;
    }

    static uint64_t bits_of_block(const uint32_t* mask, int words, int block) {
        const uint64_t low = 2 * block < words ? mask[2 * block] : 0;
        const uint64_t high = 2 * block + 1 < words ? mask[2 * block + 1] : 0;
        return low | high << 32;
    }

    const float* values_ = nullptr;
    int whole_ = 0;
    alignas(64) float tail_[kBlock];
    std::vector<float> tops_, ranked_;
};

}  // namespace lmk
