#include "masks.h"

#include "walks.h"

#include <algorithm>
#include <cstring>

namespace lmprog {

namespace {

constexpr size_t MOST_SPARSE = 2000;  // more changed ids than this are cheaper as bits

void set_bit(Bits& bits, int32_t token) { bits[token >> 6] |= 1ull << (token & 63); }
void clear_bit(Bits& bits, int32_t token) { bits[token >> 6] &= ~(1ull << (token & 63)); }

}  // namespace

Masks::Masks(Derivatives& nodes, TokenTrie& vocabulary)
    : nodes_(nodes), vocabulary_(vocabulary), hasher_(nodes), stack_(vocabulary.max_length + 1), other_stack_(stack_.size()) {}

const Mask& Masks::of(Id state) {
  auto found = masks_.find(state);
  if (found != masks_.end()) return found->second;
  Id base = relaxed(state, 0);
  Mask mask = base == state ? direct(state) : compared(state, base);
  compact(mask);
  bytes_ += 96 + 4 * (mask.with.size() + mask.without.size());
  return masks_[state] = std::move(mask);
}

void Masks::write(Id state, uint32_t* out, size_t out_words) {
  const Mask& mask = of(state);
  if (mask.base) {
    std::memcpy(out, mask.base->data(), out_words * 4);
  } else {
    std::memset(out, 0, out_words * 4);
  }
  for (int32_t token : mask.without) out[token >> 5] &= ~(1u << (token & 31));
  for (int32_t token : mask.with) out[token >> 5] |= 1u << (token & 31);
}

Id Masks::advance(Id state, int32_t token) {
  const int32_t begin = vocabulary_.offsets[token], end = vocabulary_.offsets[token + 1];
  return begin == end ? EMPTY : nodes_.step(state, vocabulary_.text.data() + begin, end - begin);
}

Bits Masks::dense(const Mask& mask) const {
  Bits bits = mask.base ? *mask.base : Bits(vocabulary_.words, 0);
  for (int32_t token : mask.without) clear_bit(bits, token);
  for (int32_t token : mask.with) set_bit(bits, token);
  return bits;
}

// `with` wins over `without`; long lists become bits of their own.
void Masks::compact(Mask& mask) {
  if (mask.with.size() + mask.without.size() <= MOST_SPARSE) return;
  mask = {std::make_shared<Bits>(dense(mask)), {}, {}};
  bytes_ += vocabulary_.words * 8;
}

void Masks::append_tokens(const PreorderTrie& trie, int32_t node, std::vector<int32_t>& out) const {
  for (int32_t i = trie.token_begin(node); i < trie.token_end[node]; i++) out.push_back(trie.tokens[i]);
}

// ---- a state by itself ---------------------------------------------------------------------------------------------

Mask Masks::direct(Id state) {
  Mask mask;
  std::vector<Id> parts, others;
  split(state, parts);
  for (size_t i = 0; i < parts.size(); i++) {
    const Id part = parts[i];
    if (!is_lexeme_part(part) || !lexeme_set(nodes_.kind(part) == Kind::cat ? nodes_.node(part).a : part)) {
      others.push_back(part);
      continue;
    }
    add_lexeme_part(mask, part);
    // A lexeme that may end here lets what follows it begin here.
    if (nodes_.kind(part) == Kind::cat && nodes_.nullable(nodes_.node(part).a)) {
      std::vector<Id> following;
      split(nodes_.node(part).b, following);
      for (Id x : following) {
        if (std::find(parts.begin(), parts.end(), x) == parts.end()) parts.push_back(x);
      }
    }
  }
  if (!others.empty()) {
    const std::vector<int32_t>& tokens = vocabulary_.trie.tokens;
    walk_vocabulary<false>(
        nodes_.alternate(others),
        [&](int32_t from, int32_t to) { mask.with.insert(mask.with.end(), tokens.begin() + from, tokens.begin() + to); },
        [](int32_t) {});
  }
  return mask;
}

// The alternatives of a state, with those in front of a common tail taken apart when they are lexemes.
void Masks::split(Id state, std::vector<Id>& parts) {
  const Node n = nodes_.node(state);
  if (n.kind == Kind::alt) {
    for (Id member : nodes_.list_of(state)) split(member, parts);
  } else if (n.kind == Kind::cat && nodes_.kind(n.a) == Kind::alt && has_lexeme_head(n.a)) {
    for (Id member : nodes_.list_of(n.a)) split(nodes_.concat(member, n.b), parts);
  } else if (state != EPSILON) {
    parts.push_back(state);
  }
}

bool Masks::has_lexeme_head(Id x) const {
  const Node& n = nodes_.node(x);
  if (n.kind == Kind::lexeme) return true;
  if (n.kind == Kind::cat) return has_lexeme_head(n.a);
  if (n.kind != Kind::alt) return false;
  for (Id member : nodes_.list_of(x)) {
    if (has_lexeme_head(member)) return true;
  }
  return false;
}

bool Masks::is_lexeme_part(Id part) const {
  const Node& n = nodes_.node(part);
  return n.kind == Kind::lexeme || (n.kind == Kind::cat && nodes_.kind(n.a) == Kind::lexeme);
}

void Masks::add_lexeme_part(Mask& mask, Id part) {
  const bool has_rest = nodes_.kind(part) == Kind::cat;
  const Node n = nodes_.node(part);
  std::shared_ptr<const LexemeSet> set = lexeme_set(has_rest ? n.a : part);
  add_inside(mask, *set);
  if (has_rest) add_exits(mask, *set, part, n.b);
}

void Masks::add_inside(Mask& mask, const LexemeSet& set) {
  if (!mask.base) {
    mask.base = set.inside;
    mask.without = set.lost;
    mask.with.insert(mask.with.end(), set.gained.begin(), set.gained.end());
    return;
  }
  Bits bits = dense(mask);
  const Bits added = dense({set.inside, set.gained, set.lost});
  for (size_t i = 0; i < bits.size(); i++) bits[i] |= added[i];
  mask = {std::make_shared<Bits>(std::move(bits)), {}, {}};
  bytes_ += vocabulary_.words * 8;
}

void Masks::add_exits(Mask& mask, const LexemeSet& set, Id part, Id rest) {
  std::vector<int32_t> tokens;
  const PreorderTrie& exits = *set.exits;
  walk(exits, 0, static_cast<int32_t>(exits.size()), rest, [&](int32_t node, Id) { append_tokens(exits, node, tokens); });
  if (!set.lost_exits.empty()) drop_lost_exits(set, part, tokens);
  const PreorderTrie& trie = vocabulary_.trie;
  for (int32_t exit : set.new_exits) {
    walk(trie, exit + 1, trie.nodes[exit].skip, rest, [&](int32_t node, Id) { append_tokens(trie, node, tokens); });
  }
  mask.with.insert(mask.with.end(), tokens.begin(), tokens.end());
}

// Tokens that pass an exit which this lexeme does not have are tried by themselves: they may have another one.
void Masks::drop_lost_exits(const LexemeSet& set, Id part, std::vector<int32_t>& tokens) {
  const PreorderTrie& trie = vocabulary_.trie;
  std::vector<int32_t> doubtful;
  for (int32_t exit : set.lost_exits) {
    doubtful.insert(doubtful.end(), trie.tokens.begin() + trie.token_end[exit],
                    trie.tokens.begin() + trie.token_end[trie.nodes[exit].skip - 1]);
  }
  std::sort(doubtful.begin(), doubtful.end());
  auto is_wrong = [&](int32_t token) {
    return std::binary_search(doubtful.begin(), doubtful.end(), token) && advance(part, token) == EMPTY;
  };
  tokens.erase(std::remove_if(tokens.begin(), tokens.end(), is_wrong), tokens.end());
}

// ---- states that come back to themselves ---------------------------------------------------------------------------

uint64_t Masks::find_loops(Id state) {
  auto found = loops_.find(state);
  if (found == loops_.end()) found = loops_.emplace(state, compute_loops(state)).first;
  recent_loops_[state % RECENT] = {state, found->second};
  return found->second;
}

uint64_t Masks::compute_loops(Id state) {
  if (nodes_.next_state(state, 'e') != state && nodes_.next_state(state, '0') != state) return 0;  // most states
  uint64_t found = loops_characters(state) ? CHARACTERS : 0;
  for (int byte = 0; byte < 0x80; byte++) found |= byte_group(static_cast<uint8_t>(byte));
  for (int byte = 0; byte < 0x80; byte++) {
    if (nodes_.next_state(state, static_cast<uint8_t>(byte)) != state) found &= ~byte_group(static_cast<uint8_t>(byte));
  }
  return found;
}

// Whether every character of several bytes leads back to the state.
bool Masks::loops_characters(Id state) {
  constexpr size_t MOST_PLACES = 40;
  std::vector<std::pair<int, Id>> places{{0, state}};  // inside a character
  for (size_t i = 0; i < places.size() && places.size() < MOST_PLACES; i++) {
    const auto [place, from] = places[i];
    for (int byte = 0x80; byte < 0x100; byte++) {
      const int next = next_in_character(place, static_cast<uint8_t>(byte));
      if (next < 0) continue;
      const Id after = nodes_.next_state(from, static_cast<uint8_t>(byte));
      if (after == EMPTY || (next == 0 && after != state)) return false;
      const std::pair<int, Id> reached{next, after};
      if (next && std::find(places.begin(), places.end(), reached) == places.end()) places.push_back(reached);
    }
  }
  return places.size() < MOST_PLACES;
}

// ---- a state compared with one that has fewer demands --------------------------------------------------------------

Mask Masks::compared(Id state, Id base) {
  Mask mask = of(base);
  const PreorderTrie& trie = vocabulary_.trie;
  std::vector<int32_t> gained, lost;
  walk_both(state, base, [&](int32_t node, Id x, Id y) {
    if (y == EMPTY) append_tokens(trie, node, gained);
    if (x == EMPTY) append_tokens(trie, node, lost);
  });
  std::sort(lost.begin(), lost.end());
  auto is_lost = [&](int32_t token) { return std::binary_search(lost.begin(), lost.end(), token); };
  mask.with.erase(std::remove_if(mask.with.begin(), mask.with.end(), is_lost), mask.with.end());
  mask.with.insert(mask.with.end(), gained.begin(), gained.end());
  mask.without.insert(mask.without.end(), lost.begin(), lost.end());
  return mask;
}

// ---- jump-forward --------------------------------------------------------------------------------------------------

int32_t Masks::forced(Id state, uint8_t* out, int32_t capacity, int32_t* cut) {
  std::vector<Id> states{state};
  int32_t count = 0;
  for (int byte; count < capacity && (byte = only_byte(state)) >= 0; count++) {
    out[count] = static_cast<uint8_t>(byte);
    state = nodes_.next_state(state, static_cast<uint8_t>(byte));
    states.push_back(state);
  }
  *cut = count;
  for (int32_t i = std::max(0, count - vocabulary_.max_length); i < count; i++) {
    if (spans(states[i], out + i, count - i)) {
      *cut = i;
      break;
    }
  }
  return count;
}

// The byte that must come next, or -1 when there is a choice.
int Masks::only_byte(Id state) {
  if (nodes_.nullable(state)) return -1;
  ByteSet allowed = nodes_.first(state);
  allowed &= nodes_.producible();
  int found = -1;
  for (int i = 0; i < 4; i++) {
    for (uint64_t word = allowed.words[i]; word; word &= word - 1) {
      const int byte = i * 64 + __builtin_ctzll(word);
      if (nodes_.next_state(state, static_cast<uint8_t>(byte)) == EMPTY) continue;
      if (found >= 0) return -1;
      found = byte;
    }
  }
  return found;
}

// Whether an allowed token begins with `data` and is longer.
bool Masks::spans(Id state, const uint8_t* data, int32_t length) {
  const PreorderTrie& trie = vocabulary_.trie;
  int32_t from = 0, to = static_cast<int32_t>(trie.size());
  for (int32_t i = 0; i < length; i++) {
    while (from < to && trie.nodes[from].byte != data[i]) from = trie.nodes[from].skip;
    if (from >= to) return false;
    to = trie.nodes[from].skip;
    from++;
  }
  state = nodes_.step(state, data, length);
  bool found = false;
  walk(trie, from, to, state, [&](int32_t node, Id) { found = found || trie.has_tokens(node); });
  return found;
}

}  // namespace lmprog
