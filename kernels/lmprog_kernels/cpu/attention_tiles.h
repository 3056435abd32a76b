// K and V tile by tile: read ahead, rearranged, and multiplied with queries and weights.
#pragma once

#include <algorithm>

#include "attention_types.h"

namespace lmk {

// ---- reading ahead

struct SlotRange {
    const int32_t *begin, *end;
    int count() const { return static_cast<int>(end - begin); }
};

// Rows of the pool that are needed kLead tokens after those being computed: K of some heads, and V of the same heads.
// Kernels fetch them line by line between their instructions, whole rows in order, and paced where they come from memory:
// a fetch that finds the cache's queue full is dropped. (Per key and head, one core: 12.7 ns; without pacing 16.3;
// without fetching 46.)
class RowsAhead {
   public:
    static constexpr int kLead = 32;

    // `keys`: K of the first head in slot 0. Sizes in bytes: of a slot, from K to V, from K to the scales of an int8 pool,
    // and of all the heads' K.
    RowsAhead(const char* keys, size_t slot, size_t to_values, size_t to_scales, size_t heads, SlotRange now,
              SlotRange then)
        : keys_(keys), slot_(slot), to_values_(to_values), to_scales_(to_scales), heads_(heads), now_(now), then_(then) {}

    // `count` lines to fetch while the tokens of `now` from `first` on are computed. Room for kOverrun more.
    static constexpr int kOverrun = 20;
    void list(int first, int count, const char** lines) const {
        const int row_lines = static_cast<int>((heads_ + 63) / 64);
        const char** at = lines;
        for (int token = first + kLead; at < lines + count; token++) {
            const char* row = row_of(token);
            if (!row) break;
            store_lines(at, row, row_lines);
            store_lines(at + row_lines, row + to_values_, row_lines);
            at += 2 * row_lines;
        }
        for (; at < lines + count; at++) *at = keys_;
    }

    // Fetches the scales of kLanes tokens, at once: they are few.
    void fetch_scales(int first) const {
        for (int token = first + kLead; token < first + kLead + kLanes; token++) {
            if (const char* row = row_of(token)) prefetch(row + to_scales_);
        }
    }

   private:
    // Of the `token`th token from the start of `now`, or null behind the end of `then`.
    LMK_INLINE const char* row_of(int token) const {
        const int later = token - now_.count();
        if (later >= then_.count()) return nullptr;
        return keys_ + (later < 0 ? now_.begin[token] : then_.begin[later]) * slot_;
    }

    // May write up to three more.
    static LMK_INLINE void store_lines(const char** at, const char* first, int count) {
        __m256i lines = _mm256_add_epi64(_mm256_set1_epi64x(reinterpret_cast<int64_t>(first)),
                                         _mm256_setr_epi64x(0, 64, 128, 192));
        for (int i = 0; i < count; i += 4) {
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(at + i), lines);
            lines = _mm256_add_epi64(lines, _mm256_set1_epi64x(256));
        }
    }

    const char* keys_;
    size_t slot_, to_values_, to_scales_, heads_;
    SlotRange now_, then_;
};

// ---- rearranging K and V

inline Floats load_element(const float* p) { return load(p); }
inline Floats load_element(const uint16_t* p) { return load_bf16(p); }
inline Floats load_element(const int8_t* p) { return load_int8(p); }

// Units of 32 bits of the product's right operand in such a unit of the pool.
template <class Product, class KV>
constexpr int kUnpacked = sizeof(typename Product::Weight) / sizeof(KV);

// A unit of the pool of kLanes keys, in the type of the product's right operand. An integer of a byte is exact in bf16,
// which is the upper half of its float32; the lower half is zero.
template <class Product, class KV>
LMK_INLINE void unpack(Bits unit, Bits* out) {
    if constexpr (sizeof(typename Product::Weight) == sizeof(KV)) {
        out[0] = unit;
    } else if constexpr (sizeof(KV) == 2) {
        out[0] = shift_left<16>(unit);
        out[1] = shift_left<16>(shift_right<16>(unit));
    } else {
        const Bits bytes[4] = {bits_of(to_floats(signed_byte<0>(unit))), bits_of(to_floats(signed_byte<1>(unit))),
                               bits_of(to_floats(signed_byte<2>(unit))), bits_of(to_floats(signed_byte<3>(unit)))};
        if constexpr (Product::kDepth == 2) {
            for (int i = 0; i < 2; i++) out[i] = either(shift_right<16>(bytes[2 * i]), bytes[2 * i + 1]);
        } else {
            for (int i = 0; i < 4; i++) out[i] = bytes[i];
        }
    }
}

// Keys become lanes: out[unit of the right operand][key], of as many elements of kLanes keys as make 128 bits. Quads are
// joined as they are loaded, so that half of the shuffles of a whole transposition suffice, in few registers.
template <class Product, class KV>
LMK_INLINE void turn_keys(const KV* const* keys, size_t offset, Bits (&out)[4 * kUnpacked<Product, KV>]) {
    Bits units[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        __m128i quads[kLanes / 4];
#pragma GCC unroll 4
        for (int k = 0; k < kLanes / 4; k++) {
            quads[k] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(keys[i + 4 * k] + offset));
        }
        units[i] = join_quads(quads);
    }
    transpose_quads(units);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) unpack<Product, KV>(units[i], out + i * kUnpacked<Product, KV>);
}

// out[unit of 32 bits of the head][key], kTile keys apart.
template <class Product, class KV>
void arrange_keys(const KV* keys, size_t stride, const int32_t* slots, int count, int head_size,
                  typename Product::Weight* out) {
    constexpr int kUnits = 4 * kUnpacked<Product, KV>;
    for (int first = 0; first < count; first += kLanes) {
        const KV* rows[kLanes];
        for (int i = 0; i < kLanes; i++) rows[i] = keys + static_cast<size_t>(slots[first + i]) * stride;
        for (int d = 0; d < head_size; d += kUnits * Product::kDepth) {
            Bits turned[kUnits];
            turn_keys<Product>(rows, d, turned);
            char* to = reinterpret_cast<char*>(out + static_cast<size_t>(d) * kTile) + first * 4;
#pragma GCC unroll 16
            for (int i = 0; i < kUnits; i++) store_bits(to + i * kTile * 4, turned[i]);
        }
    }
}

#if defined(__AVX512BF16__)
// Which elements of two vectors a and b of bf16 make a0 b0 a1 b1 ..., and which make a16 b16 a17 b17 ...
inline Bits pairing_of_low_elements() {
    alignas(64) static const uint16_t kLow[32] = {0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
                                                  8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
    return load_bits(kLow);
}
inline Bits pairing_of_high_elements() {
    return _mm512_add_epi16(pairing_of_low_elements(), _mm512_set1_epi16(16));
}

// 32 elements of the values of two keys, element by element as bf16: the first 16 pairs, and the others.
struct Pairs {
    Bits low, high;
};
LMK_INLINE Pairs pair_values(const uint16_t* even, const uint16_t* odd) {
    const Bits a = load_bits(even), b = load_bits(odd);
    return {_mm512_permutex2var_epi16(a, pairing_of_low_elements(), b),
            _mm512_permutex2var_epi16(a, pairing_of_high_elements(), b)};
}
// The upper half of a float32 is its bf16, and the lower half of a small integer is zero.
LMK_INLINE Pairs pair_values(const int8_t* even, const int8_t* odd) {
    const Bits low = _mm512_srli_epi32(bits_of(load_int8(even)), 16);
    const Bits high = _mm512_srli_epi32(bits_of(load_int8(even + kLanes)), 16);
    return {_mm512_or_si512(low, bits_of(load_int8(odd))), _mm512_or_si512(high, bits_of(load_int8(odd + kLanes)))};
}

// Values of two keys element by element: out[pair of keys][element][2].
template <class KV>
void arrange_values(const KV* values, size_t stride, const int32_t* slots, int count, int head_size, uint16_t* out) {
    for (int key = 0; key < count; key += 2, out += 2 * head_size) {
        const KV* even = values + static_cast<size_t>(slots[key]) * stride;
        const KV* odd = values + static_cast<size_t>(slots[key + 1]) * stride;
        for (int d = 0; d < head_size; d += 32) {
            const Pairs pairs = pair_values(even + d, odd + d);
            store_bits(out + 2 * d, pairs.low);
            store_bits(out + 2 * d + 32, pairs.high);
        }
    }
}
#endif

template <class KV>
void arrange_values(const KV* values, size_t stride, const int32_t* slots, int count, int head_size, float* out) {
    for (int key = 0; key < count; key++, out += head_size) {
        const KV* value = values + static_cast<size_t>(slots[key]) * stride;
        for (int d = 0; d < head_size; d += kLanes) store(out + d, load_element(value + d));
    }
}

// ---- products

// One block of a product with kVectors vectors of columns: c (+)= a b.
template <class Product, int kRows, int kVectors>
[[gnu::noinline]] void product_block(const typename Product::Input* a, size_t a_stride,
                                     const typename Product::Weight* b, size_t b_stride, int steps, float* out,
                                     size_t out_stride, bool accumulates) {
    Floats c[kRows][kVectors];
#pragma GCC unroll 8
    for (int m = 0; m < kRows; m++) {
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; v++) c[m][v] = accumulates ? load(out + m * out_stride + v * kLanes) : zero();
    }
    multiply<Product, kRows, kVectors, ReadAhead::kNone>(a, a_stride, b, b_stride, steps, c);
#pragma GCC unroll 8
    for (int m = 0; m < kRows; m++) {
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; v++) store(out + m * out_stride + v * kLanes, c[m][v]);
    }
}

template <class Product>
struct SmallProduct {
    const typename Product::Input* a;
    size_t a_stride;
    const typename Product::Weight* b;
    size_t b_stride;
    int steps;
    float* out;
    size_t out_stride;
    bool accumulates;
};

template <class Product, int kVectors, int kRows = kScoreRows>
void product_rows(const SmallProduct<Product>& p, int row, int count, int column) {
    if (count == kRows) {
        return product_block<Product, kRows, kVectors>(p.a + row * p.a_stride, p.a_stride, p.b + column * Product::kDepth,
                                                       p.b_stride, p.steps, p.out + row * p.out_stride + column,
                                                       p.out_stride, p.accumulates);
    }
    if constexpr (kRows > 1) product_rows<Product, kVectors, kRows - 1>(p, row, count, column);
}

template <class Product, int kVectors = kTileVectors>
void product_columns(const SmallProduct<Product>& p, int vectors, int row, int count, int column) {
    if (vectors == kVectors) return product_rows<Product, kVectors>(p, row, count, column);
    if constexpr (kVectors > 1) product_columns<Product, kVectors - 1>(p, vectors, row, count, column);
}

// Rows of the pool, or parts of them, that are fetched a few at a time.
struct RowsToFetch {
    const char* base;
    size_t stride, bytes;
    const int32_t *slot, *end;

    void fetch(int rows) {
        for (; rows > 0 && slot != end; rows--, slot++) {
            for (size_t b = 0; b < bytes; b += 64) prefetch(base + *slot * stride + b);
        }
    }
};

// All of a small product: rows begin <= row < end, `columns` rounded up to whole vectors. Meanwhile fetches `ahead`.
template <class Product>
void small_product(const SmallProduct<Product>& p, int begin, int end, int columns, RowsToFetch (&ahead)[2]) {
    const int vectors = (columns + kLanes - 1) / kLanes, blocks = (end - begin + kScoreRows - 1) / kScoreRows;
    for (int row = begin; row < end; row += kScoreRows) {
        for (RowsToFetch& rows : ahead) rows.fetch((kTile + blocks - 1) / blocks);
        for (int v = 0; v < vectors; v += kTileVectors) {
            product_columns<Product>(p, std::min(kTileVectors, vectors - v), row, std::min(kScoreRows, end - row),
                                     v * kLanes);
        }
    }
}

}  // namespace lmk
