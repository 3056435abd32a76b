// A token's row in the pool of a layer: [2, kv_heads, head_size] elements, K before V. Of int8 pools a scale of each head
// follows, [kv_heads, 2] float32, and rows are padded to whole cache lines.
//
// Attention reads int8 elements as the numbers they are, exact in bf16, and multiplies scores by the scale of K and
// weights by that of V: a product per key where dequantised elements would take one per element.
#pragma once

#include <type_traits>

#include "norm_rope.h"

namespace lmk {

template <class KV>
constexpr bool kIsScaled = std::is_same_v<KV, int8_t>;

template <class KV>
struct KvShape {
    int kv_heads, head_size;

    size_t elements() const { return static_cast<size_t>(2) * kv_heads * head_size; }
    // From slot to slot, in elements.
    size_t stride() const {
        if constexpr (kIsScaled<KV>) return (elements() + 2 * kv_heads * sizeof(float) + 63) / 64 * 64;
        return elements();
    }
    // From a row to the scale of K of one head, in elements; the scale of V follows.
    size_t scale_offset(int head) const { return elements() + 2 * head * sizeof(float); }
};

// K (`head` below kv_heads) or V of one head into a row.
template <class KV>
void store_kv(const KvShape<KV>& shape, KV* row, int head, const float* values) {
    KV* out = row + static_cast<size_t>(head) * shape.head_size;
    if constexpr (kIsScaled<KV>) {
        const float scale = quantize(values, shape.head_size, out).scale;
        const int is_value = head >= shape.kv_heads;
        char* to = reinterpret_cast<char*>(row + shape.scale_offset(head - is_value * shape.kv_heads));
        std::memcpy(to + is_value * sizeof scale, &scale, sizeof scale);
    } else {
        store_as(out, values, shape.head_size);
    }
}

}  // namespace lmk
