// The C boundary: plain functions over opaque handles. Expressions are returned as ints >= 0, faults as codes < 0 (nodes.h).
// One lock per arena; vocabularies lock what they share.
#include <cstring>
#include <memory>
#include <mutex>
#include <new>

#include "masks.h"
#include "shortest.h"
#include "texts.h"

using namespace lmprog;

#define LMPROG_API extern "C" __attribute__((visibility("default")))

namespace {

struct Arena {
  explicit Arena(const Limits& limits) : nodes(limits) {}
  Derivatives nodes;
  TokenTrie* vocabulary = nullptr;
  std::unique_ptr<Masks> masks;
  std::unique_ptr<Shortest> shortest;
  std::mutex mutex;
};

// Runs under the arena's lock and clock; faults become codes.
template <class Function>
int32_t guarded(Arena* arena, Function function) {
  std::lock_guard<std::mutex> guard(arena->mutex);
  arena->nodes.restart_clock();
  try {
    return static_cast<int32_t>(function());
  } catch (const Fault& fault) {
    return fault.code;
  } catch (const std::bad_alloc&) {
    return BYTES;
  }
}

Masks& masks_of(Arena* arena, TokenTrie* vocabulary) {
  if (arena->vocabulary != vocabulary) {
    arena->masks = std::make_unique<Masks>(arena->nodes, *vocabulary);
    arena->vocabulary = vocabulary;
  }
  return *arena->masks;
}

std::vector<Id> ids(const int32_t* data, int32_t count) { return {data, data + count}; }

ByteSet bytes_in(const uint8_t* bits) {
  ByteSet set;
  std::memcpy(set.words.data(), bits, 32);
  return set;
}

}  // namespace

LMPROG_API Arena* lmprog_arena_new(int64_t nodes, int64_t arena_bytes, int64_t search_states, int64_t width,
                                   double compile_seconds, double walk_seconds) {
  return new Arena(Limits{nodes, arena_bytes, search_states, width, compile_seconds, walk_seconds});
}

LMPROG_API void lmprog_arena_free(Arena* arena) { delete arena; }

LMPROG_API int64_t lmprog_arena_bytes(Arena* arena) {
  std::lock_guard<std::mutex> guard(arena->mutex);
  return static_cast<int64_t>(arena->nodes.bytes() + (arena->masks ? arena->masks->bytes() : 0) +
                              (arena->shortest ? arena->shortest->bytes() : 0));
}

LMPROG_API int64_t lmprog_arena_nodes(Arena* arena) {
  std::lock_guard<std::mutex> guard(arena->mutex);
  return static_cast<int64_t>(arena->nodes.size());
}

// ---- building ------------------------------------------------------------------------------------------------------

LMPROG_API int32_t lmprog_byte_set(Arena* arena, const uint8_t* bits) {
  return guarded(arena, [&] { return arena->nodes.byte_set(bytes_in(bits)); });
}

LMPROG_API int32_t lmprog_literal(Arena* arena, const uint8_t* data, int32_t length) {
  return guarded(arena, [&] { return arena->nodes.literal(data, length); });
}

LMPROG_API int32_t lmprog_concat(Arena* arena, const int32_t* parts, int32_t count) {
  return guarded(arena, [&] {
    Id result = EPSILON;
    for (int32_t i = count; i-- > 0;) result = arena->nodes.concat(parts[i], result);
    return result;
  });
}

LMPROG_API int32_t lmprog_alternate(Arena* arena, const int32_t* members, int32_t count) {
  return guarded(arena, [&] { return arena->nodes.alternate(ids(members, count)); });
}

LMPROG_API int32_t lmprog_intersect(Arena* arena, const int32_t* members, int32_t count) {
  return guarded(arena, [&] { return arena->nodes.intersect(ids(members, count)); });
}

LMPROG_API int32_t lmprog_complement(Arena* arena, int32_t x) {
  return guarded(arena, [&] { return arena->nodes.complement(x); });
}

LMPROG_API int32_t lmprog_repeat(Arena* arena, int32_t x, int32_t low, int32_t high) {
  return guarded(arena, [&] { return arena->nodes.repeat(x, low, high); });
}

LMPROG_API int32_t lmprog_lexeme(Arena* arena, int32_t x) {
  return guarded(arena, [&] { return arena->nodes.lexeme(x); });
}

LMPROG_API int32_t lmprog_reference(Arena* arena, int32_t nullable) {
  return guarded(arena, [&] { return arena->nodes.reference(nullable != 0); });
}

LMPROG_API int32_t lmprog_define(Arena* arena, int32_t reference, int32_t definition) {
  return guarded(arena, [&] {
    arena->nodes.define(reference, definition);
    return 0;
  });
}

LMPROG_API int32_t lmprog_members(Arena* arena, const int32_t* pairs, const uint8_t* required, int32_t count, int32_t extra,
                                  int32_t separator, int32_t low, int32_t high, int32_t any_order) {
  return guarded(arena, [&] {
    return arena->nodes.members({ids(pairs, count), {required, required + count}, extra, separator, low, high, any_order != 0});
  });
}

LMPROG_API int32_t lmprog_code_points(Arena* arena, const int32_t* bounds, int32_t count, int32_t encoding) {
  return guarded(arena, [&] {
    std::vector<Range> ranges;
    for (int32_t i = 0; i < count; i++) ranges.push_back({bounds[2 * i], bounds[2 * i + 1]});
    return code_points(arena->nodes, ranges, static_cast<Encoding>(encoding));
  });
}

LMPROG_API int32_t lmprog_words(Arena* arena, const char* data, const int32_t* offsets, int32_t count) {
  return guarded(arena, [&] {
    std::vector<std::string> choices;
    for (int32_t i = 0; i < count; i++) choices.emplace_back(data + offsets[i], data + offsets[i + 1]);
    return words(arena->nodes, std::move(choices));
  });
}

// ---- asking --------------------------------------------------------------------------------------------------------

LMPROG_API int32_t lmprog_is_nullable(Arena* arena, int32_t x) {
  return guarded(arena, [&] { return arena->nodes.nullable(x); });
}

LMPROG_API int32_t lmprog_is_final(Arena* arena, int32_t x) {
  return guarded(arena, [&] { return arena->nodes.is_final(x); });
}

LMPROG_API int32_t lmprog_is_empty(Arena* arena, int32_t x) {
  return guarded(arena, [&] { return arena->nodes.is_empty(x); });
}

LMPROG_API int32_t lmprog_step(Arena* arena, int32_t x, const uint8_t* data, int32_t length) {
  return guarded(arena, [&] { return arena->nodes.step(x, data, length); });
}

LMPROG_API int32_t lmprog_seal(Arena* arena, int32_t root, const uint8_t* producible) {
  return guarded(arena, [&] { return arena->nodes.seal(root, bytes_in(producible)); });
}

// A sealed state's shortest text, into `out`. Returns its length; when that is more than `capacity`, `out` is left alone.
LMPROG_API int32_t lmprog_shortest(Arena* arena, int32_t x, uint8_t* out, int32_t capacity) {
  return guarded(arena, [&] {
    if (!arena->shortest) arena->shortest = std::make_unique<Shortest>(arena->nodes);
    const int32_t length = arena->shortest->length(x);
    if (length <= capacity) arena->shortest->write(x, out);
    return length;
  });
}

// ---- tokens --------------------------------------------------------------------------------------------------------

LMPROG_API TokenTrie* lmprog_vocabulary_new(const uint8_t* data, const int32_t* offsets, int32_t count) {
  return new TokenTrie(data, offsets, count);
}

LMPROG_API void lmprog_vocabulary_free(TokenTrie* vocabulary) { delete vocabulary; }

LMPROG_API int32_t lmprog_mask(Arena* arena, TokenTrie* vocabulary, int32_t state, uint32_t* out, int32_t words) {
  return guarded(arena, [&] {
    masks_of(arena, vocabulary).write(state, out, words);
    return arena->nodes.nullable(state);
  });
}

LMPROG_API int32_t lmprog_advance(Arena* arena, TokenTrie* vocabulary, int32_t state, int32_t token) {
  return guarded(arena, [&] { return masks_of(arena, vocabulary).advance(state, token); });
}

LMPROG_API int32_t lmprog_forced(Arena* arena, TokenTrie* vocabulary, int32_t state, uint8_t* out, int32_t capacity,
                                 int32_t* cut) {
  return guarded(arena, [&] { return masks_of(arena, vocabulary).forced(state, out, capacity, cut); });
}
