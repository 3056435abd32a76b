// A linear layer of any format, shared by the threads of a step.
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

inline const char* first_panel(const LmkLinear& linear, int thread, int threads) {
    const Share share = Share::of(linear.rows / kPanel, thread, threads);
    return static_cast<const char*>(linear.panels) + share.begin * panel_bytes(linear);
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

template <class Kernel>
void multiply_share(const LmkLinear& linear, const Inputs& inputs, int rows, const Epilogue& epilogue, Share share,
                    const char* next) {
    constexpr size_t kFarthest = 128 * 1024;
    const size_t bytes = panel_bytes(linear);
    const size_t distance = std::min(bytes, kFarthest);
    const RowBlocks blocks = RowBlocks::of(rows, Kernel::row_bytes(linear.columns), Kernel::kMostRows);
    const int together = panels_together(epilogue);
    const char* panels = static_cast<const char*>(linear.panels);
    for (int first = 0; first < rows; first += blocks.cached) {
        const int last = std::min(rows, first + blocks.cached);
        for (int panel = share.begin; panel < share.end; panel++) {
            const char* data = panels + panel * bytes;
            const char* ahead = panel + 1 < share.end ? data + distance : next;
            const PanelWork work{linear, inputs, epilogue, data, ahead, panel, first};
            for (int row = first; row < last; row += blocks.block) {
                Kernel::run(work, row, std::min(blocks.block, last - row));
            }
            if (together > 1 && (panel + 1) % together == 0) quantize_staged(epilogue, first, last, panel);
        }
    }
}

// This thread's share of a linear layer. `next`: the weights this thread reads after these.
inline void linear_layer(const LmkLinear& linear, const Inputs& inputs, int rows, const Epilogue& epilogue, int thread,
                         int threads, const char* next) {
    if (rows == 0) return;
    const int together = panels_together(epilogue);
    Share share = Share::of(linear.rows / kPanel / together, thread, threads);
    share = {share.begin * together, share.end * together};
    switch (linear.format) {
        case LMK_FLOAT32: return multiply_share<DenseKernel<Float32Product>>(linear, inputs, rows, epilogue, share, next);
        case LMK_BF16: return multiply_share<DenseKernel<Bf16Product>>(linear, inputs, rows, epilogue, share, next);
        case LMK_INT8: return multiply_share<GroupedKernel<Int8Group>>(linear, inputs, rows, epilogue, share, next);
        default: return multiply_share<GroupedKernel<Int4Group>>(linear, inputs, rows, epilogue, share, next);
    }
}

}  // namespace lmk
