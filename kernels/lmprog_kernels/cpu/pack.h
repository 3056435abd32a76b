// Matrices into panels: [panels][columns / depth][kPanel][depth].
#pragma once

#include <cstring>

#include "gemm.h"

namespace lmk {

// Row of the source that becomes packed row `row`: plain, or gate and up rows interleaved by half panels.
inline int source_row(int row, int rows, bool interleave) {
    if (!interleave) return row;
    const int panel = row / kPanel, within = row % kPanel;
    const int column = panel * kLanes + within % kLanes;
    return within < kLanes ? column : rows / 2 + column;
}

// Copies one packed row of 2- or 4-byte elements; `depth` of them stay together.
template <class T, int kDepth>
void place_row(const T* source, int columns, T* panel, int within) {
    for (int k = 0; k < columns; k += kDepth) {
        std::memcpy(panel + static_cast<size_t>(k) * kPanel + within * kDepth, source + k, sizeof(T) * kDepth);
    }
}

// source: [rows, columns] of float32 or bf16, as `format` says; rows and columns are multiples of 32.
template <class T, int kDepth>
void pack_dense(const T* source, int rows, int columns, bool interleave, T* panels) {
#pragma omp parallel for schedule(static)
    for (int panel = 0; panel < rows / kPanel; panel++) {
        T* out = panels + static_cast<size_t>(panel) * kPanel * columns;
        for (int within = 0; within < kPanel; within++) {
            const int row = source_row(panel * kPanel + within, rows, interleave);
            place_row<T, kDepth>(source + static_cast<size_t>(row) * columns, columns, out, within);
        }
    }
}

}  // namespace lmk
