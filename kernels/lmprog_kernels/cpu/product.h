// Small dense products with all sums in registers: the one inner loop behind linear layers and attention.
//
// Every element of a product is one chain of multiply-adds in the order of k, whatever the number of rows or columns
// computed with it. That makes all results independent of how work was batched or cut.
#pragma once

#include <iterator>

#include "simd.h"

namespace lmk {

// How operands of one type are multiplied. `kDepth` values of k lie next to each other in the right operand, and
// `kPasses` instructions consume them.
struct Float32Product {
    using Input = float;   // left operand
    using Weight = float;  // right operand
    using Operand = Floats;
    static constexpr int kDepth = 1;
    static constexpr int kPasses = 1;
    static LMK_INLINE Operand weight(const Weight* w, int) { return load(w); }
    static LMK_INLINE Operand operand(Bits bits) { return floats_of(bits); }
    static LMK_INLINE Operand input(const Input* a, int) { return broadcast(*a); }
    static LMK_INLINE Floats accumulate(Floats c, Operand a, Operand w) { return fma(a, w, c); }
};

#if defined(__AVX512BF16__)
// Pairs of bf16, multiplied and summed in float32 by one instruction.
struct Bf16Product {
    using Input = uint16_t;
    using Weight = uint16_t;
    using Operand = __m512bh;
    static constexpr int kDepth = 2;
    static constexpr int kPasses = 1;
    static LMK_INLINE Operand weight(const Weight* w, int) { return operand(load_bits(w)); }
    static LMK_INLINE Operand operand(Bits bits) { return reinterpret_cast<Operand>(bits); }
    static LMK_INLINE Operand input(const Input* a, int) {
        int32_t pair;
        __builtin_memcpy(&pair, a, sizeof pair);
        return reinterpret_cast<Operand>(_mm512_set1_epi32(pair));
    }
    static LMK_INLINE Floats accumulate(Floats c, Operand a, Operand w) { return _mm512_dpbf16_ps(c, a, w); }
};
#else
// bf16 weights widened on the fly; inputs stay float32.
struct Bf16Product {
    using Input = float;
    using Weight = uint16_t;
    using Operand = Floats;
    static constexpr int kDepth = 2;
    static constexpr int kPasses = 2;
    static LMK_INLINE Operand weight(const Weight* w, int pass) { return pass == 0 ? low_bf16(w) : high_bf16(w); }
    static LMK_INLINE Operand input(const Input* a, int pass) { return broadcast(a[pass]); }
    static LMK_INLINE Floats accumulate(Floats c, Operand a, Operand w) { return fma(a, w, c); }
};
#endif

// How a product reads ahead in the memory that its right operand comes from.
enum class ReadAhead {
    kNone,
    kNear,  // a page ahead of b into the first level, for few rows: memory-bound, and the processor's own prefetching,
            // which stops at pages, does most of it (33 GB/s on one core; 24 with kFar, whose fetches get dropped)
    kFar,   // `ahead`, in step with b, into the second level, for many rows: bound by arithmetic (28 GB/s; 24 with kNear)
    kFarAndKeys,  // the same, and a line of `keys` in every step
};

// The rows of a left operand at one k. Every fifth row has a pointer, the others lie at multiples of the stride that an
// address can express: with an offset for each of 12 rows GCC runs out of registers and keeps some in vector registers,
// whose moves cost multiply-adds (4 % of a product).
template <class Input, int kRows>
class RowWalk {
   public:
    // `stride`: elements from row to row.
    LMK_INLINE RowWalk(const Input* first, size_t stride) : bytes_(stride * sizeof(Input)), three_(3 * bytes_) {
        const char* base = reinterpret_cast<const char*>(first);
        for (size_t i = 0; i < std::size(bases_); i++) bases_[i] = base + i * kSpan * bytes_;
    }
    LMK_INLINE const Input* row(int m) const {
        const int within = m % kSpan;
        return reinterpret_cast<const Input*>(bases_[m / kSpan] + (within == 3 ? three_ : within * bytes_));
    }
    LMK_INLINE void advance(int count) {
        for (const char*& base : bases_) base += count * sizeof(Input);
        asm("" : "+r"(bytes_), "+r"(three_));  // or their multiples would be computed once, and kept
    }

   private:
    static constexpr int kSpan = 5;
    const char* bases_[(kRows + kSpan - 1) / kSpan];
    size_t bytes_, three_;
};

// c[m][v] += sum over k of a[m][k] * b[k][v]. a: rows of `a_stride` inputs. b: `steps` groups of `b_stride` weights,
// each group kDepth values of k for kVectors * kLanes columns.
// The loops over m and v must be unrolled by force: otherwise the sums spill to memory (2.4 times slower).
template <class Product, int kRows, int kVectors, ReadAhead kAhead>
LMK_INLINE void multiply(const typename Product::Input* a, size_t a_stride, const typename Product::Weight* b,
                         size_t b_stride, int steps, Floats (&c)[kRows][kVectors], const char* ahead = nullptr,
                         const char* keys = nullptr) {
    constexpr int kVectorWeights = kLanes * Product::kDepth;
    constexpr int kLines = kVectors * kVectorWeights * static_cast<int>(sizeof(*b)) / 64;
    RowWalk<typename Product::Input, kRows> rows(a, a_stride);
    for (int k = 0; k < steps; k++, rows.advance(Product::kDepth), b += b_stride) {
        if constexpr (kAhead == ReadAhead::kFar || kAhead == ReadAhead::kFarAndKeys) {
#pragma GCC unroll 4
            for (int i = 0; i < kLines; i++) prefetch(ahead + 64 * i);
            ahead += 64 * kLines;
            if constexpr (kAhead == ReadAhead::kFarAndKeys) {
                prefetch(keys);
                keys += 64;
            }
        } else if constexpr (kAhead == ReadAhead::kNear) {
#pragma GCC unroll 4
            for (int i = 0; i < kLines; i++) prefetch_near(reinterpret_cast<const char*>(b) + 4096 + 64 * i);
        }
#pragma GCC unroll 2
        for (int pass = 0; pass < Product::kPasses; pass++) {
            typename Product::Operand w[kVectors];
#pragma GCC unroll 4
            for (int v = 0; v < kVectors; v++) w[v] = Product::weight(b + v * kVectorWeights, pass);
#pragma GCC unroll 16
            for (int m = 0; m < kRows; m++) {
                const typename Product::Operand x = Product::input(rows.row(m), pass);
#pragma GCC unroll 4
                for (int v = 0; v < kVectors; v++) c[m][v] = Product::accumulate(c[m][v], x, w[v]);
            }
        }
    }
}

}  // namespace lmk
