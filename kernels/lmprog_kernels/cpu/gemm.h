// Linear layers: inputs times a packed matrix, with what follows the product applied before the sums leave registers.
//
// A packed matrix is a row of panels, each kPanel outputs wide and contiguous in memory, so that a thread streams the
// panels that it needs.
#pragma once

#include "buffers.h"
#include "keys_ahead.h"
#include "product.h"

namespace lmk {

constexpr int kPanel = 2 * kLanes;
constexpr int kFewRows = 4;  // up to here a product is bound by memory
#if defined(__AVX512F__)
constexpr int kMostRows = 12;  // 24 sums of 32 registers
#else
constexpr int kMostRows = 6;  // 12 sums of 16 registers
#endif

// What happens to a product. Gate: the first half of a panel's columns are gates, the second half the values they
// scale; the results are the inputs of the next product.
struct Epilogue {
    enum Kind { kStore, kAdd, kGate };
    Kind kind;
    float* out;   // kStore, kAdd
    int stride;   // of `out`
    int columns;  // kStore: columns of `out`, where a panel may reach past them
    float scale;  // kStore: out = product * scale; kAdd: out += product * scale
    float softcap;
    int32_t gate = LMK_SILU;  // kGate
    Inputs gated{};           // kGate
    float* staging = nullptr;  // kGate to int8: [rows of a cached block, kGroup] of this thread
};

inline Floats apply_gate(int32_t gate, Floats x) {
    if (gate == LMK_SILU) return mul(x, sigmoid(x));
    if (gate == LMK_GELU) {
        return mul(mul(x, broadcast(0.5f)), add(broadcast(1.0f), erf(mul(x, broadcast(0.70710678f)))));
    }
    const Floats cubic = fma(mul(mul(x, x), x), broadcast(0.044715f), x);
    return mul(mul(x, broadcast(0.5f)), add(broadcast(1.0f), tanh(mul(cubic, broadcast(0.79788456f)))));
}

// `staged`: number of the row within its cached block.
inline void finish_gate(const Epilogue& e, int row, int staged, int panel, Floats gate, Floats up) {
    const Floats value = mul(apply_gate(e.gate, gate), up);
    const int column = panel * kLanes;
    if (e.gated.type == InputType::kFloat) {
        store(e.gated.row<float>(row) + column, value);
    } else if (e.gated.type == InputType::kBf16) {
        store_bf16(e.gated.row<uint16_t>(row) + column, value);
    } else {
        store(e.staging + staged * kGroup + column % kGroup, value);
    }
}

inline Floats cap(Floats x, float limit) {
    return mul(tanh(mul(x, broadcast(1.0f / limit))), broadcast(limit));
}

// Two vectors of a row; the last panel of the head may reach past the vocabulary.
inline void finish_store(const Epilogue& e, int row, int panel, Floats low, Floats high) {
    low = mul(low, broadcast(e.scale));
    high = mul(high, broadcast(e.scale));
    if (e.softcap > 0.0f) {
        low = cap(low, e.softcap);
        high = cap(high, e.softcap);
    }
    const int column = panel * kPanel;
    float* out = e.out + static_cast<size_t>(row) * e.stride + column;
    if (column + kPanel <= e.columns) {
        store(out, low);
        store(out + kLanes, high);
        return;
    }
    float whole[kPanel];
    store(whole, low);
    store(whole + kLanes, high);
    for (int i = 0; i < e.columns - column; i++) out[i] = whole[i];
}

inline void finish_add(const Epilogue& e, int row, int panel, Floats low, Floats high) {
    float* out = e.out + static_cast<size_t>(row) * e.stride + panel * kPanel;
    store(out, fma(low, broadcast(e.scale), load(out)));
    store(out + kLanes, fma(high, broadcast(e.scale), load(out + kLanes)));
}

// Where a thread stands in a matrix.
struct PanelWork {
    const LmkLinear& linear;
    const Inputs& inputs;
    const Epilogue& epilogue;
    const char* panel_data;
    const char* ahead;
    int panel, first_row;  // of the cached block of rows
    const char* keys;      // lines to fetch, one for every step of a block of rows, or null
};

// By way of memory and a loop: a gate is too long to be repeated for every row, and around a call all sums would be saved.
template <int kRows>
LMK_INLINE void finish_gates(const PanelWork& w, int row, Floats (&c)[kRows][2]) {
    alignas(64) float sums[kRows][kPanel];
#pragma GCC unroll 16
    for (int m = 0; m < kRows; m++) {
        store(sums[m], c[m][0]);
        store(sums[m] + kLanes, c[m][1]);
    }
#pragma GCC unroll 1
    for (int m = 0; m < kRows; m++) {
        finish_gate(w.epilogue, row + m, row + m - w.first_row, w.panel, load(sums[m]), load(sums[m] + kLanes));
    }
}

template <int kRows>
LMK_INLINE void finish(const PanelWork& w, int row, Floats (&c)[kRows][2]) {
    const Epilogue& e = w.epilogue;
    const int panel = w.panel;
    if (const float* bias = w.linear.bias) {
#pragma GCC unroll 16
        for (int m = 0; m < kRows; m++) {
            c[m][0] = add(c[m][0], load(bias + panel * kPanel));
            c[m][1] = add(c[m][1], load(bias + panel * kPanel + kLanes));
        }
    }
    if (e.kind == Epilogue::kGate) return finish_gates<kRows>(w, row, c);
#pragma GCC unroll 16
    for (int m = 0; m < kRows; m++) {
        if (e.kind == Epilogue::kAdd) {
            finish_add(e, row + m, panel, c[m][0], c[m][1]);
        } else {
            finish_store(e, row + m, panel, c[m][0], c[m][1]);
        }
    }
}

// Fetches the lines that a block's results will be written to.
template <int kRows>
LMK_INLINE void fetch_results(const PanelWork& w, int row) {
    const Epilogue& e = w.epilogue;
#pragma GCC unroll 16
    for (int m = 0; m < kRows; m++) {
        if (e.kind != Epilogue::kGate) {
            const float* out = e.out + static_cast<size_t>(row + m) * e.stride + w.panel * kPanel;
            for (int i = 0; i < kPanel; i += 16) prefetch_write(out + i);
        } else if (e.gated.type == InputType::kBf16) {
            prefetch_write(e.gated.row<uint16_t>(row + m) + w.panel * kLanes);
        }
    }
}

template <class Product, int kRows, bool kHasKeys>
[[gnu::noinline]] void panel_block(const PanelWork& w, int row) {
    Floats c[kRows][2];
#pragma GCC unroll 16
    for (int m = 0; m < kRows; m++) c[m][0] = c[m][1] = zero();
    if constexpr (kRows > kFewRows) fetch_results<kRows>(w, row);
    constexpr ReadAhead kFar = kHasKeys ? ReadAhead::kFarAndKeys : ReadAhead::kFar;
    constexpr ReadAhead kAhead = kRows <= kFewRows ? ReadAhead::kNear : kFar;
    multiply<Product, kRows, 2, kAhead>(w.inputs.row<typename Product::Input>(row), w.inputs.stride,
                                      reinterpret_cast<const typename Product::Weight*>(w.panel_data),
                                      kPanel * Product::kDepth, w.linear.columns / Product::kDepth, c, w.ahead, w.keys);
    finish<kRows>(w, row, c);
}

template <class Product, int kRows = kMostRows>
void rows_block(const PanelWork& w, int row, int count) {
    if (count == kRows) {
        return w.keys ? panel_block<Product, kRows, (kRows > kFewRows)>(w, row) : panel_block<Product, kRows, false>(w, row);
    }
    if constexpr (kRows > 1) rows_block<Product, kRows - 1>(w, row, count);
}

}  // namespace lmk
