// Token sets of lexemes, and what it means for two states to be alike.
#include <algorithm>

#include "masks.h"
#include "walks.h"

namespace lmprog {

namespace {

constexpr size_t MOST_EXITS = 40000;    // tokens times exits; a lexeme with more is walked like any other state
constexpr size_t MOST_CHANGES = 2000;   // more changed ids than this are cheaper as bits
constexpr int32_t SMALL_COUNT = 8;      // counts up to this bound a walk by themselves
constexpr int RELAXED_DEPTH = 8;        // how far behind the first element counters are relaxed
constexpr int32_t RELAXED_WIDTH = 16;   // alternatives

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
  walk(trie, 0, static_cast<int32_t>(trie.size()), inner, [&](int32_t node, Id after) {
    for (int32_t i = trie.token_begin(node); i < trie.token_end[node]; i++) {
      inside[trie.tokens[i] >> 6] |= 1ull << (trie.tokens[i] & 63);
    }
    if (nodes_.nullable(after) && trie.skip[node] > node + 1) exits.push_back(node);
  });
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
    for (int32_t i = trie.token_end[exit]; i < trie.token_end[trie.skip[exit] - 1]; i++) {
      const int32_t token = trie.tokens[i];
      suffixes.emplace_back(std::string(vocabulary_.text.begin() + vocabulary_.offsets[token] + trie.depth[exit],
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
    if (trie.skip[node] == node + 1) return;
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
  const Kind head = nodes_.kind(n.a);
  const bool is_short = head == Kind::set || head == Kind::alt;
  return nodes_.concat(relaxed(n.a, depth + 1), is_short ? relaxed(n.b, depth + 1) : n.b);
}

Id Masks::relaxed_alt(Id x, int depth) {
  if (nodes_.node(x).b > RELAXED_WIDTH || depth > RELAXED_DEPTH) return x;
  std::vector<Id> members = nodes_.list_of(x);
  for (Id& member : members) member = relaxed(member, depth + 1);
  return nodes_.alternate(std::move(members));
}

Id Masks::relaxed_all(Id x, int depth) {
  std::vector<Id> kept;
  for (Id member : nodes_.list_of(x)) {
    if (nodes_.kind(member) != Kind::complement) kept.push_back(member);
  }
  if (kept.empty()) return x;
  return kept.size() == 1 ? relaxed(kept[0], depth + 1) : nodes_.intersect(std::move(kept));
}

// Whether two states allow and accept the same texts of up to `height` bytes. False when it is not seen at once.
bool Masks::is_equal_within(Id x, Id y, int height) {
  if (x == y) return true;
  const Node a = nodes_.node(x), b = nodes_.node(y);
  if (a.kind != b.kind) return false;
  if (a.kind == Kind::rep) return is_equal_rep(a, b, height);
  if (a.kind == Kind::alt) return is_equal_alt(x, y, height);
  if (a.kind == Kind::lexeme) return is_equal_within(a.a, b.a, height);
  if (a.kind != Kind::cat) return false;
  if (a.b == b.b) return is_equal_within(a.a, b.a, height);
  return a.a == b.a && is_equal_within(a.b, b.b, height);
}

// A round reads a byte at least, so a counter of `height` or more does not run out.
bool Masks::is_equal_rep(const Node& x, const Node& y, int height) const {
  const bool same_low = x.b == y.b || (x.b > height && y.b > height);
  const bool same_high = x.c == y.c || ((x.c < 0 || x.c >= height) && (y.c < 0 || y.c >= height));
  return x.a == y.a && same_low && same_high;
}

bool Masks::is_equal_alt(Id x, Id y, int height) {
  const std::vector<Id> left = nodes_.list_of(x), right = nodes_.list_of(y);
  if (left.size() != right.size() || left.size() > RELAXED_WIDTH) return false;
  for (Id a : left) {
    if (std::none_of(right.begin(), right.end(), [&](Id b) { return is_equal_within(a, b, height); })) return false;
  }
  for (Id b : right) {
    if (std::none_of(left.begin(), left.end(), [&](Id a) { return is_equal_within(a, b, height); })) return false;
  }
  return true;
}

}  // namespace lmprog
