// Memory: aligned buffers that only grow, and rows of inputs for matrix products in the type that the product wants.
#pragma once

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>

#include "abi.h"
#include "simd.h"

namespace lmk {

constexpr int kGroup = 32;  // elements that share a scale; all padded sizes are multiples of it

inline int round_up(int n, int multiple) { return (n + multiple - 1) / multiple * multiple; }

// Zeroed on growth, so that padding which nobody writes stays zero.
template <class T>
class Buffer {
   public:
    Buffer() = default;
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    ~Buffer() { release(); }

    void reserve(size_t count) {
        if (count <= capacity_) return;
        release();
        const size_t bytes = (count * sizeof(T) + kSlack + kPage - 1) / kPage * kPage;
        void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) throw std::bad_alloc();
        if (bytes >= kHugePage) madvise(memory, bytes, MADV_HUGEPAGE);
        data_ = static_cast<T*>(memory);
        bytes_ = bytes;
        capacity_ = count;
    }
    T* data() const { return data_; }
    T& operator[](size_t i) const { return data_[i]; }

   private:
    static constexpr size_t kPage = 4096;
    static constexpr size_t kHugePage = size_t{1} << 21;
    static constexpr size_t kSlack = 256;  // vector loads may run past the end

    void release() {
        if (data_) munmap(data_, bytes_);
        data_ = nullptr;
        capacity_ = bytes_ = 0;
    }

    T* data_ = nullptr;
    size_t capacity_ = 0, bytes_ = 0;
};

// What a matrix product in `format` takes as its left operand.
enum class InputType { kFloat, kBf16, kInt8 };

inline InputType input_type(int32_t format) {
    if (format == LMK_INT8 || format == LMK_INT4) return InputType::kInt8;
#if defined(__AVX512BF16__)
    if (format == LMK_BF16) return InputType::kBf16;
#endif
    return InputType::kFloat;
}

// Of a group of int8 inputs: their scale, and kOffsetUnit times their sum.
constexpr int32_t kOffsetUnit = -128;  // int8 weights are stored as w + 128; for the minima of 4-bit ones any would do

struct GroupFactors {
    float scale;
    int32_t offset;
};

// Rows of inputs.
struct Inputs {
    InputType type;
    int stride;  // elements per row, a multiple of kGroup
    void* data;
    GroupFactors* factors = nullptr;  // of int8: [rows, stride / kGroup]

    template <class T>
    T* row(int index) const {
        return static_cast<T*>(data) + static_cast<size_t>(index) * stride;
    }
};

class InputBuffer {
   public:
    Inputs resize(int rows, int columns, int32_t format) {
        const InputType type = input_type(format);
        const size_t count = static_cast<size_t>(rows) * columns;
        bytes_.reserve(count * (type == InputType::kFloat ? 4 : type == InputType::kBf16 ? 2 : 1));
        if (type == InputType::kInt8) factors_.reserve(count / kGroup);
        return {type, columns, bytes_.data(), factors_.data()};
    }

   private:
    Buffer<char> bytes_;
    Buffer<GroupFactors> factors_;
};

struct Quantized {
    float scale;  // not a number if a value is not one
    Bits totals;  // of the integers, lane by lane
};

// Symmetric int8 with the largest magnitude at 127.
LMK_INLINE Quantized quantize(const float* values, int count, int8_t* out) {
    Floats top = zero();
    uint32_t unknown = 0;
    for (int i = 0; i < count; i += kLanes) {
        const Floats x = load(values + i);
        top = max(top, absolute(x));
        unknown |= nans(x);
    }
    const float largest = unknown ? std::numeric_limits<float>::quiet_NaN() : maximum(top);
    const Floats inverse = broadcast(largest > 0.0f ? 127.0f / largest : 0.0f);
    Bits totals = broadcast_int(0);
    for (int i = 0; i < count; i += kLanes) {
        const Bits q = round_to_int(mul(load(values + i), inverse));
        store_int8(out + i, q);
        totals = add_int(totals, q);
    }
    return {largest / 127.0f, totals};
}

inline GroupFactors quantize_group(const float* values, int8_t* out) {
    const Quantized made = quantize(values, kGroup, out);
    return {made.scale, kOffsetUnit * sum_int(made.totals)};
}

// Writes `count` values (a multiple of kGroup, at a multiple of kGroup) into a row.
inline void put(const Inputs& inputs, int row, int column, const float* values, int count) {
    if (inputs.type == InputType::kFloat) {
        std::memcpy(inputs.row<float>(row) + column, values, count * sizeof(float));
    } else if (inputs.type == InputType::kBf16) {
        uint16_t* out = inputs.row<uint16_t>(row) + column;
        for (int i = 0; i < count; i += kLanes) store_bf16(out + i, load(values + i));
    } else {
        const size_t group = (static_cast<size_t>(row) * inputs.stride + column) / kGroup;
        int8_t* out = inputs.row<int8_t>(row) + column;
        for (int g = 0; g < count / kGroup; g++) {
            inputs.factors[group + g] = quantize_group(values + g * kGroup, out + g * kGroup);
        }
    }
}

}  // namespace lmk
