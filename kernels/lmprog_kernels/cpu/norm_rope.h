// Row-wise work between the products: RMS norms, rotary positions, and K and V on their way into the pool.
#pragma once

#include <cmath>

#include "buffers.h"
#include "product.h"

namespace lmk {

// x / sqrt(mean(x^2) + eps) * weight over `count` elements, padded with zeros to `size`. Source: arXiv 1910.07467.
inline void rms_norm(const float* x, const float* weight, int count, int size, float eps, float* out) {
    Floats even = zero(), odd = zero();
    for (int i = 0; i < size; i += 2 * kLanes) {
        even = fma(load(x + i), load(x + i), even);
        odd = fma(load(x + i + kLanes), load(x + i + kLanes), odd);
    }
    const float mean = sum(add(even, odd)) / static_cast<float>(count);
    const Floats scale = broadcast(1.0f / std::sqrt(mean + eps));
    for (int i = 0; i < size; i += kLanes) store(out + i, mul(mul(load(x + i), scale), load(weight + i)));
}

// x += rms_norm(y) * scale
inline void add_normed(float* x, const float* y, const float* weight, int count, int size, float eps, float scale,
                       float* scratch) {
    rms_norm(y, weight, count, size, eps, scratch);
    for (int i = 0; i < size; i += kLanes) store(x + i, fma(load(scratch + i), broadcast(scale), load(x + i)));
}

// Cosines, then sines, of one position: out [2, pairs].
inline void rotation(const LmkRope& rope, int32_t position, float* out) {
    for (int i = 0; i < rope.pairs; i++) {
        const float angle = static_cast<float>(position) * rope.frequencies[i];
        out[i] = std::cos(angle) * rope.scale;
        out[rope.pairs + i] = std::sin(angle) * rope.scale;
    }
}

inline void rotate(float* head, const float* rotation, int pairs) {
    const float *cosine = rotation, *sine = rotation + pairs;
    for (int i = 0; i < pairs; i++) {
        const float first = head[i], second = head[i + pairs];
        head[i] = first * cosine[i] - second * sine[i];
        head[i + pairs] = second * cosine[i] + first * sine[i];
    }
}

inline void store_as(float* out, const float* values, int count) { std::memcpy(out, values, count * sizeof(float)); }
inline void store_as(uint16_t* out, const float* values, int count) {
    for (int i = 0; i < count; i += kLanes) store_bf16(out + i, load(values + i));
}

// One head of a row on its way from the fused product to the query buffer or the pool.
struct HeadShape {
    int dim, size;  // elements, and padded
    float eps;      // of the norm
};

// norm and rotation: null for none. The result is multiplied by `factor`.
inline void transform_head(const float* source, const HeadShape& shape, const float* norm, const float* rotation,
                           int pairs, float factor, float* out) {
    if (norm) {
        rms_norm(source, norm, shape.dim, shape.size, shape.eps, out);
    } else {
        std::memcpy(out, source, shape.size * sizeof(float));
    }
    if (rotation) rotate(out, rotation, pairs);
    for (int i = 0; i < shape.size; i += kLanes) store(out + i, mul(load(out + i), broadcast(factor)));
}

}  // namespace lmk
