// Token sets of lexemes, and what it means for two states to be alike.
#include <algorithm>
#include <limits>

#include "masks.h"
#include "walks.h"

namespace lmprog {

namespace {

constexpr size_t MOST_EXITS = 40000;    // tokens times exits; a lexeme with more is walked like any other state
constexpr size_t MOST_CHANGES = 2000;   // more changed ids than this are cheaper as bits
constexpr int32_t SMALL_COUNT = 8;      // counts up to this bound a walk by themselves
constexpr int RELAXED_DEPTH = 8;        // how far behind the first element counters are relaxed
constexpr size_t RELAXED_WIDTH = 16;    // alternatives
constexpr int ALWAYS = std::numeric_limits<int>::max();

}  // namespace

// Null for a lexeme that has too many exits to be worth a set of its own.
std::shared_ptr<const LexemeSet> Masks::lexeme_set(Id lexeme) {
  auto known = lexemes_.find(lexeme);
  if (known != lexemes_.end()) return known->second;
  const ContentHash key = hasher_.of(lexeme);
  std::shared_ptr<const LexemeSet> set = vocabulary_.find_lexeme(key);
  if (!set) {
    const Id inner = nodes_.node(lexeme).a;
    const Id base = relaxed(inner, 0);
    set = base == inner ? whole_lexeme_set(inner) : similar_lexeme_set(inner, base);
    if (set) vocabulary_.keep_lexeme(key, set);
  }
  if (set) bytes_ += set->own_bytes;
  return lexemes_[lexeme] = set;
}

std::shared_ptr<const LexemeSet> Masks::whole_lexeme_set(Id inner) {
  const PreorderTrie& trie = vocabulary_.trie;
  Bits inside(vocabulary_.words, 0);
  Exits exits;
  walk_vocabulary<true>(
      inner,
      [&](int32_t from, int32_t to) {
        for (int32_t i = from; i < to; i++) inside[trie.tokens[i] >> 6] |= 1ull << (trie.tokens[i] & 63);
      },
      [&](int32_t node) { exits.push_back(node); });
  auto set = std::make_shared<LexemeSet>();
  set->exits = exit_trie(exits);
  if (!set->exits) return nullptr;
  set->own_bytes = inside.size() * 8 + set->exits->bytes();
  set->inside = std::make_shared<Bits>(std::move(inside));
  return set;
}

std::shared_ptr<const PreorderTrie> Masks::exit_trie(const Exits& exits) const {
  const PreorderTrie& trie = vocabulary_.trie;
  std::vector<std::pair<std::string, int32_t>> suffixes;
  for (int32_t exit : exits) {
    for (int32_t i = trie.token_end[exit]; i < trie.token_end[trie.nodes[exit].skip - 1]; i++) {
      const int32_t token = trie.tokens[i];
      suffixes.emplace_back(std::string(vocabulary_.text.begin() + vocabulary_.offsets[token] + trie.nodes[exit].depth,
                                        vocabulary_.text.begin() + vocabulary_.offsets[token + 1]),
                            token);
    }
    if (suffixes.size() > MOST_EXITS) return nullptr;
  }
  std::sort(suffixes.begin(), suffixes.end());
  return std::make_shared<PreorderTrie>(PreorderTrie::build(suffixes));
}

std::shared_ptr<const LexemeSet> Masks::similar_lexeme_set(Id inner, Id base) {
  std::shared_ptr<const LexemeSet> similar = lexeme_set(nodes_.lexeme(base));
  if (!similar) return nullptr;
  if (!similar->gained.empty() || !similar->lost.empty() || !similar->lost_exits.empty() || !similar->new_exits.empty()) {
    return whole_lexeme_set(inner);
  }
  const PreorderTrie& trie = vocabulary_.trie;
  auto set = std::make_shared<LexemeSet>(*similar);
  walk_both(inner, base, [&](int32_t node, Id x, Id y) {
    if (y == EMPTY) append_tokens(trie, node, set->gained);
    if (x == EMPTY) append_tokens(trie, node, set->lost);
    if (trie.nodes[node].skip == node + 1) return;
    const bool exits = x != EMPTY && nodes_.nullable(x), base_exits = y != EMPTY && nodes_.nullable(y);
    if (exits && !base_exits) set->new_exits.push_back(node);
    if (base_exits && !exits) set->lost_exits.push_back(node);
  });
  if (set->gained.size() + set->lost.size() > MOST_CHANGES) {
    set->inside = std::make_shared<Bits>(dense({similar->inside, set->gained, set->lost}));
    set->gained.clear();
    set->lost.clear();
    set->own_bytes = vocabulary_.words * 8;
  } else {
    set->own_bytes = 0;
  }
  set->own_bytes += 4 * (set->gained.size() + set->lost.size() + set->new_exits.size() + set->lost_exits.size()) + 128;
  return set;
}

// ---- fewer demands -------------------------------------------------------------------------------------------------

// A state that allows at least as much: counters beyond the longest token have no bound, exclusions are gone. Many states
// have the same one, and differ from it in few tokens.
Id Masks::relaxed(Id x, int depth) {
  auto known = relaxed_.find(x);
  if (depth == 0 && known != relaxed_.end()) return known->second;
  const Node n = nodes_.node(x);
  Id result = x;
  if (n.kind == Kind::rep) {
    const int32_t low = std::min(n.b, vocabulary_.max_length);
    const int32_t high = n.c > SMALL_COUNT ? -1 : n.c;
    result = nodes_.repeat(n.a, low, high);
  } else if (n.kind == Kind::cat) {
    result = relaxed_cat(x, depth);
  } else if (n.kind == Kind::alt) {
    result = relaxed_alt(x, depth);
  } else if (n.kind == Kind::all) {
    result = relaxed_all(x, depth);
  }
  if (depth == 0) relaxed_[x] = result;
  return result;
}

Id Masks::relaxed_cat(Id x, int depth) {
  const Node n = nodes_.node(x);
  if (has_lexeme_head(n.a) || depth > RELAXED_DEPTH) return x;
  return nodes_.concat(relaxed(n.a, depth + 1), relaxed(n.b, depth + 1));
}

Id Masks::relaxed_alt(Id x, int depth) {
  if (static_cast<size_t>(nodes_.node(x).b) > RELAXED_WIDTH || depth > RELAXED_DEPTH) return x;
  std::vector<Id> members = nodes_.list_of(x);
  for (Id& member : members) member = relaxed(member, depth + 1);
  return nodes_.alternate(std::move(members));
}

Id Masks::relaxed_all(Id x, int depth) {
  std::vector<Id> kept;
  for (Id member : nodes_.list_of(x)) {
    if (nodes_.kind(member) != Kind::complement || !is_finite(nodes_.node(member).a, RELAXED_DEPTH)) kept.push_back(member);
  }
  if (kept.empty()) return x;
  return kept.size() == 1 ? relaxed(kept[0], depth + 1) : nodes_.intersect(std::move(kept));
}

// Excluded words are behind after some bytes; an excluded pattern stays, and leaving it out would save nothing.
bool Masks::is_finite(Id x, int depth) const {
  for (; nodes_.kind(x) == Kind::cat; x = nodes_.node(x).b) {
    if (!is_finite(nodes_.node(x).a, depth)) return false;
  }
  const Kind kind = nodes_.kind(x);
  if (kind == Kind::set || kind == Kind::epsilon || depth == 0) return true;
  if (kind != Kind::alt) return false;
  return std::all_of(nodes_.list_begin(x), nodes_.list_end(x), [&](Id member) { return is_finite(member, depth - 1); });
}

// Two states allow and accept the same texts of up to so many bytes; -1 when that is not seen at once.
int Masks::equal_height(Id x, Id y) {
  if (x == y) return ALWAYS;
  const uint64_t key = static_cast<uint64_t>(x) << 32 | static_cast<uint32_t>(y);
  auto known = equal_heights_.find(key);
  if (known != equal_heights_.end()) return known->second;
  const int height = compute_equal_height(x, y);
  return equal_heights_[key] = height;
}

int Masks::compute_equal_height(Id x, Id y) {
  const Node a = nodes_.node(x), b = nodes_.node(y);
  if (a.kind != b.kind) return -1;
  switch (a.kind) {
    case Kind::rep: {  // a round reads a byte at least, so a counter of that many does not run out
      if (a.a != b.a) return -1;
      const int low = a.b == b.b ? ALWAYS : std::min(a.b, b.b) - 1;
      const int high = a.c == b.c ? ALWAYS : a.c < 0 ? b.c : b.c < 0 ? a.c : std::min(a.c, b.c);
      return std::min(low, high);
    }
    case Kind::alt:
      return equal_height_alt(x, y);
    case Kind::lexeme:
      return equal_height(a.a, b.a);
    case Kind::cat:
      if (a.b == b.b) return equal_height(a.a, b.a);
      if (a.a == b.a) return equal_height(a.b, b.b);
      return std::min(equal_height(a.a, b.a), equal_height(a.b, b.b));
    default:
      return -1;
  }
}

int Masks::equal_height_alt(Id x, Id y) {
  const std::vector<Id> left = nodes_.list_of(x), right = nodes_.list_of(y);
  if (left.size() > RELAXED_WIDTH || right.size() > RELAXED_WIDTH) return -1;
  auto covered = [&](const std::vector<Id>& from, const std::vector<Id>& by) {
    int height = ALWAYS;
    for (Id a : from) {
      int best = -1;
      for (Id b : by) best = std::max(best, equal_height(a, b));
      height = std::min(height, best);
    }
    return height;
  };
  return std::min(covered(left, right), covered(right, left));
}

}  // namespace lmprog
