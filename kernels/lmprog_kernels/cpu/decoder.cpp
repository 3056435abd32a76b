// The C interface of the library; abi.h has its structs.

#include "decoder.h"

#include <new>
#include <stdexcept>

#include "abi.h"
#include "measure.h"
#include "pack.h"

#define LMK_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using namespace lmk;

enum Status : int { kOk = 0, kOutOfMemory = 1, kBadPlan = 2 };

// No exception may cross the C interface.
template <class Work>
int guarded(const Work& work) {
    try {
        work();
        return kOk;
    } catch (const std::bad_alloc&) {
        return kOutOfMemory;
    } catch (const std::invalid_argument&) {
        return kBadPlan;
    }
}

// Calls `work` with a value of the type of a pool's elements.
template <class Work>
auto with_elements(int32_t kv_format, const Work& work) {
    if (kv_format == LMK_INT8) return work(int8_t{});
    return kv_format == LMK_FLOAT32 ? work(float{}) : work(uint16_t{});
}

template <class KV>
void attention_alone(const LmkAttention& a) {
    const int group = a.num_heads / a.num_kv_heads, size = a.num_heads * a.head_size;
    AttentionSchedule plan;
    plan.build({reinterpret_cast<const PlanItem*>(a.items), a.num_items, a.key_slots, a.positions, a.num_rows},
               {a.window, group, a.num_kv_heads, a.num_threads, 0});
    const float factor = a.scale * (a.softcap > 0.0f ? 1.0f : kLog2E);
    const size_t states = static_cast<size_t>(plan.num_partials) * a.num_heads;
    Buffer<QueryOf<KV>> queries;
    Buffer<float> values, tops, totals, scaled;
    queries.reserve(static_cast<size_t>(a.num_rows) * size);
    scaled.reserve(size);
    values.reserve(states * a.head_size);
    tops.reserve(states);
    totals.reserve(states);
    for (int row = 0; row < a.num_rows; row++) {
        const size_t at = static_cast<size_t>(row) * size;
        for (int i = 0; i < size; i++) scaled[i] = a.queries[at + i] * factor;
        store_as(queries.data() + at, scaled.data(), size);
    }
    const AttentionLayer<KV> layer{queries.data(), static_cast<const KV*>(a.kv), a.num_heads, a.num_kv_heads,
                                   a.head_size, a.softcap, Inputs{InputType::kFloat, size, a.out},
                                   values.data(), tops.data(), totals.data(), false};
    UnitDeal deal;
    deal.reset(a.num_threads);
    run_team(a.num_threads, [&](const Member& member) {
        AttentionScratch<KV> scratch;
        scratch.reserve(most_states(group, a.num_kv_heads), a.head_size);
        attend_units(layer, plan, deal, member, scratch);
        member.wait();
        merge_rows(layer, plan, member, scratch);
    });
}

}  // namespace

// Bytes of a packed matrix of `rows` by `columns`, both multiples of 32.
LMK_EXPORT int64_t lmk_packed_bytes(int32_t format, int32_t rows, int32_t columns) {
    const LmkLinear linear{format, rows, columns, 0, nullptr, nullptr};
    return static_cast<int64_t>(panel_bytes(linear)) * (rows / kPanel);
}

// source: [rows, columns] bf16 (for LMK_BF16) or float32. interleave: rows are gates, then as many values.
LMK_EXPORT void lmk_pack(int32_t format, const void* source, int32_t rows, int32_t columns, int32_t interleave,
                         void* panels) {
    pack({format, rows, columns, 0, nullptr, nullptr}, source, interleave != 0, static_cast<char*>(panels));
}

// Packed position of a bias: out[i] is the bias of packed row i.
LMK_EXPORT void lmk_pack_bias(const float* bias, int32_t rows, int32_t interleave, float* out) {
    for (int row = 0; row < rows; row++) out[row] = bias[source_row(row, rows, interleave != 0)];
}

// out: [count, linear.rows] float32 = inputs [count, linear.columns] float32 times the matrix, for tests.
LMK_EXPORT int lmk_linear(const LmkLinear* linear, const float* inputs, int32_t count, int32_t threads, float* out) {
    return guarded([&] {
        InputBuffer buffer;
        const Inputs rows = buffer.resize(count, linear->columns, linear->format);
        for (int i = 0; i < count; i++) {
            put(rows, i, 0, inputs + static_cast<size_t>(i) * linear->columns, linear->columns);
        }
        const Epilogue epilogue{Epilogue::kStore, out, linear->rows, linear->rows, 1.0f, 0.0f};
        run_team(threads, [&](const Member& m) {
            KeysAhead no_keys;
            linear_layer(*linear, rows, epilogue, part_of(*linear, epilogue, {0, count}, m),
                         static_cast<const char*>(linear->panels), no_keys);
        });
    });
}

LMK_EXPORT int lmk_attention(const LmkAttention* attention) {
    return guarded([&] {
        with_elements(attention->kv_format, [&](auto element) { attention_alone<decltype(element)>(*attention); });
    });
}

// The arrays that `model` points to must outlive the decoder, except `layers` and `ropes` themselves.
LMK_EXPORT Decoder* lmk_decoder_new(const LmkModel* model) {
    Decoder* decoder = nullptr;
    guarded([&] {
        decoder = with_elements(model->kv_format,
                                [&](auto element) -> Decoder* { return new DecoderOf<decltype(element)>(*model); });
    });
    return decoder;
}

LMK_EXPORT void lmk_decoder_free(Decoder* decoder) { delete decoder; }

// phase_seconds: [kPhases] to add to, or null.
LMK_EXPORT int lmk_decoder_step(Decoder* decoder, const LmkStep* step, int32_t threads, double* phase_seconds) {
    return guarded([&] { decoder->step(*step, threads, phase_seconds); });
}

LMK_EXPORT int32_t lmk_abi() { return kAbi; }

// Bytes per second read from `data` by all threads together.
LMK_EXPORT double lmk_read_rate(const void* data, int64_t bytes, int32_t threads) {
    return read_rate(static_cast<const char*>(data), bytes, threads);
}

// Floating-point operations per second of products in `format`, from registers.
LMK_EXPORT double lmk_arithmetic_rate(int32_t format, int32_t threads, int64_t rounds) {
    return format == LMK_FLOAT32 ? arithmetic_rate<Float32Product>(threads, rounds)
                                 : arithmetic_rate<Bf16Product>(threads, rounds);
}
