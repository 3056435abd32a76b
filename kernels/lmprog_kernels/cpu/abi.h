// The C interface: plain structs of 32-bit integers, floats and pointers. structs.py mirrors this file field by field.
#pragma once

#include <cstdint>

extern "C" {

enum LmkFormat : int32_t { LMK_FLOAT32 = 0, LMK_BF16 = 1, LMK_INT8 = 2, LMK_INT4 = 3 };

enum LmkGate : int32_t { LMK_SILU = 0, LMK_GELU_TANH = 1, LMK_GELU = 2 };

// A packed matrix of `rows` outputs by `columns` inputs, both multiples of 32.
struct LmkLinear {
    int32_t format;  // LmkFormat
    int32_t rows;
    int32_t columns;
    int32_t reserved;
    const void* panels;  // as lmk_pack wrote them
    const float* bias;   // [rows] in packed order, or null
};

struct LmkRope {
    int32_t pairs;  // rotated pairs per head: element i with element i + pairs
    float scale;    // on cosine and sine
    const float* frequencies;  // [pairs] radians per position
};

struct LmkLayer {
    LmkLinear qkv, output, gate_up, down;
    const float* input_norm;           // [hidden]
    const float* mlp_norm;             // [hidden]
    const float* attention_post_norm;  // [hidden] or null
    const float* mlp_post_norm;        // [hidden] or null
    const float* q_norm;               // [head_dim] or null
    const float* k_norm;               // [head_dim] or null
    int32_t rope;                      // index into LmkModel::ropes, or -1
    int32_t window;                    // tokens, or 0 for all
};

// Sizes that end in `_size` count padded elements, multiples of 32; padding is zero in all weights.
struct LmkModel {
    int32_t num_layers, num_ropes;
    int32_t vocab_size;
    int32_t hidden, hidden_size;
    int32_t inner_size;
    int32_t num_heads, num_kv_heads;
    int32_t head_dim, head_size;
    int32_t gate;       // LmkGate
    int32_t kv_format;  // LMK_FLOAT32 or LMK_BF16
    int32_t embedding_format;  // LMK_FLOAT32 or LMK_BF16
    float norm_eps;
    float attention_scale, attention_softcap;  // a softcap of 0 is none
    float logit_scale, logit_softcap;
    float embedding_scale, residual_scale;
    int64_t num_slots;
    const LmkRope* ropes;
    const LmkLayer* layers;
    const void* embedding;    // [vocab, hidden] without padding
    const float* final_norm;  // [hidden]
    LmkLinear head;
    void* kv;  // [layers, slots, 2, kv_heads, head_size]
};

// One step; see StepBatch for the meaning of the arrays.
struct LmkStep {
    int32_t num_rows, num_outputs, num_items, reserved;
    const int32_t* tokens;
    const int32_t* positions;
    const int32_t* slots;
    const int32_t* logit_rows;
    const int32_t* key_slots;
    const int32_t* items;  // [num_items, 6]
    float* logits;         // [num_outputs, vocab_size]
};

// Attention alone, for tests and measurements: queries [rows, heads, head_size] float32, out the same.
struct LmkAttention {
    int32_t num_rows, num_heads, num_kv_heads, head_size;
    int32_t kv_format, window, num_items, num_threads;
    float scale, softcap;
    const float* queries;
    const void* kv;  // [slots, 2, kv_heads, head_size]
    const int32_t* positions;
    const int32_t* key_slots;
    const int32_t* items;
    float* out;
};

}  // extern "C"
