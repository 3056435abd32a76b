// What this machine can do at best: reading memory, and multiply-adds from registers. The floors of benchmarks.
#pragma once

#include <chrono>

#include "buffers.h"
#include "product.h"
#include "team.h"

namespace lmk {

inline double seconds_since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Bytes per second that `threads` threads read from `data`, each its own part once.
inline double read_rate(const char* data, int64_t bytes, int threads) {
    constexpr int64_t kBlock = 4096, kAhead = 16384;
    const auto start = std::chrono::steady_clock::now();
    run_team(threads, [&](const Member& member) {
        Bits sink = bits_of(zero());
        const int blocks = static_cast<int>(bytes / kBlock);
        const Share share = Share::of(blocks, member.thread, member.threads);
        for (const char* p = data + share.begin * kBlock; p < data + share.end * kBlock; p += 64) {
            prefetch(p + kAhead);
            for (int i = 0; i < 64; i += static_cast<int>(sizeof(Bits))) sink ^= load_bits(p + i);
        }
        asm volatile("" ::"x"(sink));
    });
    return static_cast<double>(bytes) / seconds_since(start);
}

// Multiply-adds per second, times two, of `Product` with all operands in registers.
template <class Product>
double arithmetic_rate(int threads, int64_t rounds) {
    constexpr int kSums = 12;
    const auto start = std::chrono::steady_clock::now();
    run_team(threads, [&](const Member&) {
        Floats sums[kSums];
        for (auto& s : sums) s = zero();
        alignas(64) const char zeros[64] = {};
        auto x = Product::weight(reinterpret_cast<const typename Product::Weight*>(zeros), 0);
        for (int64_t i = 0; i < rounds; i++) {
            asm volatile("" : "+x"(x));
#pragma GCC unroll 12
            for (int s = 0; s < kSums; s++) sums[s] = Product::accumulate(sums[s], x, x);
        }
        for (auto& s : sums) asm volatile("" ::"x"(s));
    });
    const double flops = 2.0 * kSums * kLanes * Product::kDepth / Product::kPasses;
    return flops * static_cast<double>(rounds) * threads / seconds_since(start);
}

}  // namespace lmk
