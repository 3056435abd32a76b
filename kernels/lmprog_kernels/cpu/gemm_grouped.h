// Products with quantised weights: integers within a group of kGroup inputs, which share a scale, then float32.
//
// A panel is a row of blocks, one per group: the integers of kPanel columns, then their scales (and minima), so that it
// is read as one stream. Inputs are int8 with a scale per row and group. Integer sums are exact, and the groups of a
// result are added in order, so it does not depend on what else is computed.
#pragma once

#include "gemm.h"

namespace lmk {

#if defined(__AVX512F__)
constexpr int kGroupedRows = 6;  // 12 float sums and 12 integer sums of 32 registers
#else
constexpr int kGroupedRows = 2;
#endif

// Four inputs of a row as one lane.
LMK_INLINE Bits input_quad(const int8_t* inputs) {
    int32_t quad;
    __builtin_memcpy(&quad, inputs, sizeof quad);
    return broadcast_int(quad);
}

// w = scale * (byte - 128): [8][kPanel][4] bytes, [kPanel] float16 scales. As Q8_0 of GGUF.
struct Int8Group {
    static constexpr int kSteps = 8;
    static constexpr int kStepBytes = kPanel * 4;
    static constexpr int kBytes = kSteps * kStepBytes + kPanel * 2;

    static LMK_INLINE Bits start(Bits offset) { return offset; }

    template <int kRows>
    static LMK_INLINE void step(const uint8_t* w, const RowWalk<int8_t, kRows>& inputs, int at, Bits (&c)[kRows][2]) {
        const Bits low = load_bits(w), high = load_bits(w + sizeof(Bits));
#pragma GCC unroll 8
        for (int m = 0; m < kRows; m++) {
            const Bits x = input_quad(inputs.row(m) + at);
            c[m][0] = dot_bytes(c[m][0], low, x);
            c[m][1] = dot_bytes(c[m][1], high, x);
        }
    }

    static LMK_INLINE Floats add_group(Floats sum, Bits c, const uint16_t* scales, Floats input_scale, Bits) {
        return fma(to_floats(c), mul(input_scale, load_f16(scales)), sum);
    }
};

// w = scale * nibble + minimum: [4][kPanel][4] bytes, whose low nibbles are inputs 8 i to 8 i + 3 and whose high ones are
// the next four; [kPanel] float16 scales, [kPanel] float16 minima. As Q4_1 of GGUF; Q4_0 is minimum = -8 scale.
struct Int4Group {
    static constexpr int kSteps = 4;
    static constexpr int kStepBytes = kPanel * 4;
    static constexpr int kBytes = kSteps * kStepBytes + kPanel * 4;

    static LMK_INLINE Bits start(Bits) { return broadcast_int(0); }

    template <int kRows>
    static LMK_INLINE void step(const uint8_t* w, const RowWalk<int8_t, kRows>& inputs, int at, Bits (&c)[kRows][2]) {
        const Bits a = load_bits(w), b = load_bits(w + sizeof(Bits));
        const Bits a_low = low_nibbles(a), a_high = high_nibbles(a), b_low = low_nibbles(b), b_high = high_nibbles(b);
#pragma GCC unroll 8
        for (int m = 0; m < kRows; m++) {
            const Bits x = input_quad(inputs.row(m) + at), y = input_quad(inputs.row(m) + at + 4);
            c[m][0] = dot_nibbles(dot_nibbles(c[m][0], a_low, x), a_high, y);
            c[m][1] = dot_nibbles(dot_nibbles(c[m][1], b_low, x), b_high, y);
        }
    }

    static LMK_INLINE Floats add_group(Floats sum, Bits c, const uint16_t* scales, Floats input_scale, Bits offset) {
        const Floats unit = broadcast(1.0f / kOffsetUnit);  // a power of two: exact
        const Floats minima = mul(to_floats(offset), mul(load_f16(scales + kPanel), unit));
        return fma(input_scale, fma(to_floats(c), load_f16(scales), minima), sum);
    }
};

template <class Group, int kRows, bool kHasKeys>
[[gnu::noinline]] void grouped_block(const PanelWork& work, int row) {
    constexpr int kInputs = kGroup / Group::kSteps;
    constexpr bool kFar = kRows > kFewRows;
    const size_t stride = work.inputs.stride, groups = stride / kGroup;
    RowWalk<int8_t, kRows> inputs(work.inputs.row<int8_t>(row), stride);
    RowWalk<GroupFactors, kRows> factors(work.inputs.factors + row * groups, groups);
    const auto* w = reinterpret_cast<const uint8_t*>(work.panel_data);
    const char* ahead = kFar ? work.ahead : work.panel_data + 4096;
    const char* keys = work.keys;
    Floats f[kRows][2];
#pragma GCC unroll 8
    for (int m = 0; m < kRows; m++) f[m][0] = f[m][1] = zero();
    for (int g = 0; g < work.linear.columns / kGroup; g++, w += Group::kBytes, ahead += Group::kBytes) {
        Bits c[kRows][2];
#pragma GCC unroll 8
        for (int m = 0; m < kRows; m++) c[m][0] = c[m][1] = Group::start(broadcast_int(factors.row(m)->offset));
#pragma GCC unroll 8
        for (int s = 0; s < Group::kSteps; s++) {
            constexpr int kStepAhead = (Group::kBytes + Group::kSteps - 1) / Group::kSteps;
            for (int i = 0; i < kStepAhead; i += 64) {
                kFar ? prefetch(ahead + s * kStepAhead + i) : prefetch_near(ahead + s * kStepAhead + i);
            }
            if constexpr (kHasKeys) {
                prefetch(keys);
                keys += 64;
            }
            Group::template step<kRows>(w + s * Group::kStepBytes, inputs, s * kInputs, c);
        }
        const auto* weight_scales = reinterpret_cast<const uint16_t*>(w + Group::kSteps * Group::kStepBytes);
#pragma GCC unroll 8
        for (int m = 0; m < kRows; m++) {
            const Floats scale = broadcast(factors.row(m)->scale);
            const Bits offset = broadcast_int(factors.row(m)->offset);
            f[m][0] = Group::add_group(f[m][0], c[m][0], weight_scales, scale, offset);
            f[m][1] = Group::add_group(f[m][1], c[m][1], weight_scales + kLanes, scale, offset);
        }
        inputs.advance(kGroup);
        factors.advance(1);
    }
    finish<kRows>(work, row, f);
}

template <class Group>
struct GroupedKernel {
    static constexpr int kMostRows = kGroupedRows;
    static size_t row_bytes(int columns) { return columns; }
    static int steps(int columns) { return columns / kGroup * Group::kSteps; }

    template <int kRows = kGroupedRows>
    static void run(const PanelWork& work, int row, int count) {
        if (count == kRows) {
            return work.keys ? grouped_block<Group, kRows, (kRows > kFewRows)>(work, row)
                             : grouped_block<Group, kRows, false>(work, row);
        }
        if constexpr (kRows > 1) run<kRows - 1>(work, row, count);
    }
};

}  // namespace lmk
