// Reads the pool ahead of attention: products of many rows are bound by arithmetic and leave memory idle, attention of
// single rows is bound by memory. So the products before a layer's attention fetch the keys and values that it reads, by
// way of the second level into the third.
#pragma once

#include <cstdint>
#include <fstream>
#include <vector>

#include "attention_plan.h"

namespace lmk {

// Bytes of the third-level cache that processor 0 has a part in, or 0 if Linux does not say. (sysconf may report the sum
// of all such caches of a host.)
inline int64_t third_level_bytes() {
    std::ifstream file("/sys/devices/system/cpu/cpu0/cache/index3/size");
    int64_t kilobytes = 0;
    char unit = 0;
    file >> kilobytes >> unit;
    return unit == 'K' ? kilobytes * 1024 : 0;
}

// What one thread fetches for one layer.
class KeysAhead {
   public:
    // `row_bytes`: of a token in the pool of the layer that starts at `kv`.
    void aim(const char* kv, size_t row_bytes, const std::vector<SlotRun>& runs) {
        kv_ = kv;
        row_bytes_ = row_bytes;
        run_ = runs.data();
        end_ = run_ + runs.size();
        done_ = 0;
    }

    void stop() { run_ = end_; }

    // The first of the next `count` lines, which follow each other; null if none are left.
    const char* take(int count) {
        if (run_ == end_) return nullptr;
        const char* first = kv_ + run_->begin * row_bytes_ + done_;
        done_ += static_cast<size_t>(count) * 64;
        if (done_ >= run_->count * row_bytes_) {
            run_++;
            done_ = 0;
        }
        return first;
    }

   private:
    const char* kv_ = nullptr;
    size_t row_bytes_ = 0, done_ = 0;  // bytes of the run
    const SlotRun *run_ = nullptr, *end_ = nullptr;
};

}  // namespace lmk
