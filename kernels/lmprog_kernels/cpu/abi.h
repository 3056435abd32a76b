// The C interface: plain structs of 32-bit integers, floats and pointers. structs.py mirrors this file field by field.
#pragma once

#include <cstdint>

constexpr int32_t kAbi = 2;  // structs.py has the same: one more with every change of this file

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
    int32_t kv_format;  // LMK_FLOAT32, LMK_BF16 or LMK_INT8
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
    void* kv;  // [layers, slots, ...]: a row as in kv_rows.h
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

// How to choose the next token of one row, and what was chosen. See lmprog_runtime's sampler for the definitions.
struct LmkSampleRow {
    const uint32_t* mask;      // [mask_words] bit t % 32 of word t / 32: token t is allowed; null: all are
    const int32_t* bias_ids;   // [num_biases]
    const float* biases;       // [num_biases]
    const int32_t* seen_ids;   // [num_seen] each once: tokens under the repetition penalty
    const int32_t* count_ids;  // [num_counts] each once: tokens under the frequency and presence penalties
    const float* counts;       // [num_counts]
    int32_t* top_ids;          // [num_top], written
    float* top_logprobs;       // [num_top], written
    double top_p, min_p;       // 1 and 0: no limit
    uint64_t sequence, draw;   // if temperature > 0: see uniform_of
    int32_t mask_words, num_biases, num_seen, num_counts;
    int32_t num_top;  // at most the vocabulary
    int32_t top_k;    // 0 or less: no limit
    int32_t wants_logprob;
    float repetition, frequency, presence, temperature;
    int32_t token;      // written; -1: no allowed token has a finite logit, or one is not a number
    int32_t found_top;  // written if wants_logprob: how many of num_top have a finite logit
    float logprob;      // written if wants_logprob
};

// Log-probabilities of one token per row, and of the likeliest ones.
struct LmkScoreRow {
    const float* logits;
    int32_t* top_ids;     // [num_top], written
    float* top_logprobs;  // [num_top], written
    int32_t token, num_top;
    int32_t found_top;  // written
    float logprob;      // written
};

// Attention alone, for tests and measurements: queries [rows, heads, head_size] float32, out the same.
struct LmkAttention {
    int32_t num_rows, num_heads, num_kv_heads, head_size;
    int32_t kv_format, window, num_items, num_threads;
    float scale, softcap;
    const float* queries;
    const void* kv;  // [slots, ...]: a row as in kv_rows.h
    const int32_t* positions;
    const int32_t* key_slots;
    const int32_t* items;
    float* out;
};

}  // extern "C"
