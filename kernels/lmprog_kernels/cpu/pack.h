// Matrices into panels. Sources are row-major [rows, columns], both multiples of 32.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>

#include "linear.h"

namespace lmk {

// Row of the source that becomes packed row `row`: plain, or gate and up rows interleaved by half panels.
inline int source_row(int row, int rows, bool interleave) {
    if (!interleave) return row;
    const int panel = row / kPanel, within = row % kPanel;
    const int column = panel * kLanes + within % kLanes;
    return within < kLanes ? column : rows / 2 + column;
}

// Packs all panels in parallel: place(source row, start of the panel, column within it).
template <class T, class Place>
void pack_rows(const T* source, const LmkLinear& linear, bool interleave, char* panels, const Place& place) {
    const size_t bytes = panel_bytes(linear);
#pragma omp parallel for schedule(static)
    for (int panel = 0; panel < linear.rows / kPanel; panel++) {
        for (int within = 0; within < kPanel; within++) {
            const int row = source_row(panel * kPanel + within, linear.rows, interleave);
            place(source + static_cast<size_t>(row) * linear.columns, panels + panel * bytes, within);
        }
    }
}

// [columns / kDepth][kPanel][kDepth] elements.
template <class T, int kDepth>
void place_dense(const T* source, int columns, char* panel, int within) {
    for (int k = 0; k < columns; k += kDepth) {
        std::memcpy(panel + (static_cast<size_t>(k) * kPanel + within * kDepth) * sizeof(T), source + k,
                    sizeof(T) * kDepth);
    }
}

inline uint16_t to_f16(float x) { return _cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT); }
inline float from_f16(uint16_t x) { return _cvtsh_ss(x); }

inline int nearest(float x, int low, int high) {
    return std::min(high, std::max(low, static_cast<int>(std::nearbyint(x))));
}

inline void place_int8(const float* source, int columns, char* panel, int within) {
    for (int k = 0; k < columns; k += kGroup, source += kGroup, panel += Int8Group::kBytes) {
        float largest = 0.0f;
        for (int i = 0; i < kGroup; i++) largest = std::max(largest, std::fabs(source[i]));
        const uint16_t scale = to_f16(largest / 127.0f);
        const float inverse = from_f16(scale) > 0.0f ? 1.0f / from_f16(scale) : 0.0f;
        auto* bytes = reinterpret_cast<uint8_t*>(panel);
        for (int i = 0; i < kGroup; i++) {
            const int q = nearest(source[i] * inverse, -127, 127);
            bytes[i / 4 * Int8Group::kStepBytes + within * 4 + i % 4] = static_cast<uint8_t>(q + 128);
        }
        std::memcpy(panel + Int8Group::kSteps * Int8Group::kStepBytes + within * 2, &scale, sizeof scale);
    }
}

inline void place_int4(const float* source, int columns, char* panel, int within) {
    for (int k = 0; k < columns; k += kGroup, source += kGroup, panel += Int4Group::kBytes) {
        const auto [low, high] = std::minmax_element(source, source + kGroup);
        const uint16_t scale = to_f16((*high - *low) / 15.0f), minimum = to_f16(*low);
        const float inverse = from_f16(scale) > 0.0f ? 1.0f / from_f16(scale) : 0.0f;
        auto* bytes = reinterpret_cast<uint8_t*>(panel);
        for (int i = 0; i < kGroup; i++) {
            const int q = nearest((source[i] - from_f16(minimum)) * inverse, 0, 15);
            uint8_t& byte = bytes[i / 8 * Int4Group::kStepBytes + within * 4 + i % 4];
            byte = static_cast<uint8_t>(i % 8 < 4 ? (byte & 0xf0) | q : (byte & 0x0f) | q << 4);
        }
        char* scales = panel + Int4Group::kSteps * Int4Group::kStepBytes + within * 2;
        std::memcpy(scales, &scale, sizeof scale);
        std::memcpy(scales + kPanel * 2, &minimum, sizeof minimum);
    }
}

// source: bf16 for LMK_BF16, else float32.
inline void pack(const LmkLinear& linear, const void* source, bool interleave, char* panels) {
    const int columns = linear.columns;
    const auto* floats = static_cast<const float*>(source);
    const auto* halves = static_cast<const uint16_t*>(source);
    switch (linear.format) {
        case LMK_FLOAT32:
            return pack_rows(floats, linear, interleave, panels, [columns](const float* row, char* panel, int within) {
                place_dense<float, 1>(row, columns, panel, within);
            });
        case LMK_BF16:
            return pack_rows(halves, linear, interleave, panels, [columns](const uint16_t* row, char* panel, int within) {
                place_dense<uint16_t, 2>(row, columns, panel, within);
            });
        case LMK_INT8:
            return pack_rows(floats, linear, interleave, panels, [columns](const float* row, char* panel, int within) {
                place_int8(row, columns, panel, within);
            });
        default:
            return pack_rows(floats, linear, interleave, panels, [columns](const float* row, char* panel, int within) {
                place_int4(row, columns, panel, within);
            });
    }
}

}  // namespace lmk
