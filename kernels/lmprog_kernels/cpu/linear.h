// A linear layer of any format: the part of it that one thread computes.
#pragma once

#include <algorithm>

#include "gemm.h"
#include "gemm_grouped.h"
#include "team.h"

namespace lmk {

inline size_t panel_bytes(const LmkLinear& linear) {
    const size_t columns = static_cast<size_t>(linear.columns);
    switch (linear.format) {
        case LMK_FLOAT32: return columns * kPanel * 4;
        case LMK_BF16: return columns * kPanel * 2;
        case LMK_INT8: return columns / kGroup * Int8Group::kBytes;
        default: return columns / kGroup * Int4Group::kBytes;
    }
}

// Rows whose inputs stay in the second-level cache while panels stream past, in equal blocks of at most kMostRows.
struct RowBlocks {
    int block, cached;
    static RowBlocks of(int rows, size_t row_bytes, int most_rows) {
        constexpr size_t kCached = 400 * 1024;
        const int blocks = (rows + most_rows - 1) / most_rows;
        const int block = (rows + blocks - 1) / blocks;
        const int fit = static_cast<int>(kCached / row_bytes) / block * block;
        return {block, std::max(block, fit)};
    }
};

// The kernels of dense formats: one product over all columns.
template <class Product>
struct DenseKernel {
    static constexpr int kMostRows = lmk::kMostRows;
    static size_t row_bytes(int columns) { return columns * sizeof(typename Product::Input); }
    static int steps(int columns) { return columns / Product::kDepth; }
    static void run(const PanelWork& work, int row, int count) { rows_block<Product>(work, row, count); }
};

// The columns of several panels make one group of quantised results; one thread computes them all.
inline int panels_together(const Epilogue& epilogue) {
    const bool quantises = epilogue.kind == Epilogue::kGate && epilogue.gated.type == InputType::kInt8;
    return quantises ? kGroup / kLanes : 1;
}

inline void quantize_staged(const Epilogue& epilogue, int first, int last, int panel) {
    const int column = (panel + 1) * kLanes - kGroup;
    for (int row = first; row < last; row++) {
        put(epilogue.gated, row, column, epilogue.staging + (row - first) * kGroup, kGroup);
    }
}

// What one thread computes of a product.
struct Part {
    Share rows, panels;
};

// `rows` by this thread's panels.
inline Part part_of(const LmkLinear& linear, const Epilogue& epilogue, Share rows, const Member& member) {
    const int together = panels_together(epilogue);
    const Share share = Share::of(linear.rows / kPanel / together, member.thread, member.threads);
    return {rows, {share.begin * together, share.end * together}};
}

template <class Kernel>
void multiply_part(const LmkLinear& linear, const Inputs& inputs, const Epilogue& epilogue, const Part& part,
                   const char* next, KeysAhead& keys) {
    constexpr size_t kFarthest = 128 * 1024;
    const size_t bytes = panel_bytes(linear);
    const size_t distance = std::min(bytes, kFarthest);
    const RowBlocks blocks = RowBlocks::of(part.rows.count(), Kernel::row_bytes(linear.columns), Kernel::kMostRows);
    const int together = panels_together(epilogue);
    const char* panels = static_cast<const char*>(linear.panels);
    for (int first = part.rows.begin; first < part.rows.end; first += blocks.cached) {
        const int last = std::min(part.rows.end, first + blocks.cached);
        const char* after = last < part.rows.end ? panels + part.panels.begin * bytes : next;
        for (int panel = part.panels.begin; panel < part.panels.end; panel++) {
            const char* data = panels + panel * bytes;
            const char* ahead = panel + 1 < part.panels.end ? data + distance : after;
            PanelWork work{linear, inputs, epilogue, data, ahead, panel, first, nullptr};
            for (int row = first; row < last; row += blocks.block) {
                const int count = std::min(blocks.block, last - row);
                work.keys = count > kFewRows ? keys.take(Kernel::steps(linear.columns)) : nullptr;
                Kernel::run(work, row, count);
            }
            if (together > 1 && (panel + 1) % together == 0) quantize_staged(epilogue, first, last, panel);
        }
    }
}

// `next`: the weights this thread reads after these. `keys`: what it fetches besides.
inline void linear_layer(const LmkLinear& linear, const Inputs& inputs, const Epilogue& epilogue, const Part& part,
                         const char* next, KeysAhead& keys) {
    if (part.rows.count() == 0) return;
    switch (linear.format) {
        case LMK_FLOAT32: return multiply_part<DenseKernel<Float32Product>>(linear, inputs, epilogue, part, next, keys);
        case LMK_BF16: return multiply_part<DenseKernel<Bf16Product>>(linear, inputs, epilogue, part, next, keys);
        case LMK_INT8: return multiply_part<GroupedKernel<Int8Group>>(linear, inputs, epilogue, part, next, keys);
        default: return multiply_part<GroupedKernel<Int4Group>>(linear, inputs, epilogue, part, next, keys);
    }
}

template <class Kernel>
int64_t spare_lines(const LmkLinear& linear, int rows) {
    const int block = RowBlocks::of(rows, Kernel::row_bytes(linear.columns), Kernel::kMostRows).block;
    const int64_t blocks = rows / block + (rows % block > kFewRows);
    return block > kFewRows ? blocks * (linear.rows / kPanel) * Kernel::steps(linear.columns) : 0;
}

// Lines that a product of `rows` rows can fetch besides its weights; none where it is bound by memory itself.
inline int64_t spare_lines(const LmkLinear& linear, int rows) {
    if (rows <= kMostRows) return 0;
    switch (linear.format) {
        case LMK_FLOAT32: return spare_lines<DenseKernel<Float32Product>>(linear, rows);
        case LMK_BF16: return spare_lines<DenseKernel<Bf16Product>>(linear, rows);
        case LMK_INT8: return spare_lines<GroupedKernel<Int8Group>>(linear, rows);
        default: return spare_lines<GroupedKernel<Int4Group>>(linear, rows);
    }
}

}  // namespace lmk
