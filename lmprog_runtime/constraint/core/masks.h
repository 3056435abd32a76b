// Which tokens may follow a state. One walk over the token trie would do; this avoids most of it:
// - tokens inside a lexeme (a JSON string) are one set for all contexts; only those that leave it are looked at per context;
// - a state with large counters or exclusions is compared with the one that has none (`relaxed`), and the walk leaves out
//   every subtree in which the two cannot differ.
#pragma once

#include <functional>
#include <memory>
#include <unordered_map>

#include "trie.h"

namespace lmprog {

// `base`, less `without`, plus `with`. base may be null: no token.
struct Mask {
  std::shared_ptr<const Bits> base;
  std::vector<int32_t> with, without;
};

class Masks {
 public:
  Masks(Derivatives& nodes, TokenTrie& vocabulary);

  const Mask& of(Id state);
  void write(Id state, uint32_t* out, size_t out_words);
  Id advance(Id state, int32_t token);
  // Bytes that must follow, into `out`. Returns how many; `cut` is where the first longer token could begin.
  int32_t forced(Id state, uint8_t* out, int32_t capacity, int32_t* cut);
  size_t bytes() const { return bytes_; }

 private:
  struct Changes {  // token ids
    std::vector<int32_t> gained, lost;
  };
  using Exits = std::vector<int32_t>;

  Mask direct(Id state);
  Mask compared(Id state, Id base);
  void add_lexeme_part(Mask& mask, Id part);
  void add_exits(Mask& mask, const LexemeSet& set, Id part, Id rest);
  void add_inside(Mask& mask, const LexemeSet& set);
  void drop_lost_exits(const LexemeSet& set, Id part, std::vector<int32_t>& tokens);
  void compact(Mask& mask);
  Bits dense(const Mask& mask) const;

  void split(Id state, std::vector<Id>& parts);
  bool is_lexeme_part(Id part) const;
  bool has_lexeme_head(Id x) const;
  std::shared_ptr<const LexemeSet> lexeme_set(Id lexeme);
  std::shared_ptr<const LexemeSet> whole_lexeme_set(Id inner);
  std::shared_ptr<const LexemeSet> similar_lexeme_set(Id inner, Id base);
  std::shared_ptr<const PreorderTrie> exit_trie(const Exits& exits) const;

  Id relaxed(Id x, int depth);
  Id relaxed_cat(Id x, int depth);
  Id relaxed_alt(Id x, int depth);
  Id relaxed_all(Id x, int depth);
  bool is_finite(Id x, int depth) const;
  int equal_height(Id x, Id y);
  int compute_equal_height(Id x, Id y);
  int equal_height_alt(Id x, Id y);

  // Every node of `trie` in [from, to) whose bytes the state allows: visit(node, state behind it).
  template <class Visit>
  void walk(const PreorderTrie& trie, int32_t from, int32_t to, Id state, Visit visit);
  // The same for the whole vocabulary: add_tokens(first, behind the last) for runs of the trie's tokens, add_exit(node) where
  // a text may end and tokens go on. What leads a state back to itself is not looked at.
  template <bool with_exits, class AddTokens, class AddExit>
  void walk_vocabulary(Id state, AddTokens add_tokens, AddExit add_exit);
  // Both at once, leaving out what cannot differ: visit(node, x, y).
  template <class Visit>
  void walk_both(Id x, Id y, Visit visit);
  void append_tokens(const PreorderTrie& trie, int32_t node, std::vector<int32_t>& out) const;
  // Byte groups (trie.h) that lead a state back to itself.
  uint64_t loops(Id state) {
    const Loops& recent = recent_loops_[state % RECENT];
    return state == recent.state ? recent.groups : find_loops(state);
  }
  uint64_t find_loops(Id state);
  uint64_t compute_loops(Id state);
  bool loops_characters(Id state);
  bool spans(Id state, const uint8_t* data, int32_t length);
  int only_byte(Id state);

  Derivatives& nodes_;
  TokenTrie& vocabulary_;
  ContentHasher hasher_;
  std::unordered_map<Id, Mask> masks_;
  std::unordered_map<Id, std::shared_ptr<const LexemeSet>> lexemes_;
  std::unordered_map<Id, Id> relaxed_;
  std::unordered_map<uint64_t, int> equal_heights_;
  std::unordered_map<Id, uint64_t> loops_;
  struct Loops {
    Id state = EMPTY;
    uint64_t groups = 0;
  };
  static constexpr size_t RECENT = 64;
  std::array<Loops, RECENT> recent_loops_;
  std::vector<Id> stack_, other_stack_;
  size_t bytes_ = 0;
};

}  // namespace lmprog
