// The vocabulary as a trie in preorder with skip pointers, and the token sets of lexemes, shared by all its grammars.
#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "content_hash.h"

namespace lmprog {

using Bits = std::vector<uint64_t>;  // one bit per token id

// Bytes that masks tell apart when they ask whether a text leads a state back to itself; a group is a bit.
constexpr uint64_t CHARACTERS = 1ull << 62;  // of several bytes, from their first to their last
constexpr uint64_t FRAGMENTS = 1ull << 63;   // bytes that are no character
uint64_t byte_group(uint8_t byte);           // of an ASCII character
// The place in a character behind one more byte: 0 between characters, -1 where there can be no such character.
int next_in_character(int place, uint8_t byte);

// A trie in preorder. A node's subtree is [node, skip[node]).
struct PreorderTrie {
  struct Node {
    int32_t skip;    // the next node that is no descendant
    uint16_t depth;  // 1 for the children of the root
    uint8_t byte;    // on the edge to the node
  };
  std::vector<Node> nodes;
  std::vector<int32_t> token_end;  // tokens of node i: tokens[token_end[i-1] .. token_end[i])
  std::vector<int32_t> tokens;

  size_t size() const { return nodes.size(); }
  int32_t token_begin(int32_t node) const { return node ? token_end[node - 1] : 0; }
  bool has_tokens(int32_t node) const { return token_begin(node) != token_end[node]; }
  // `sorted`: (text, token id), by text.
  static PreorderTrie build(const std::vector<std::pair<std::string, int32_t>>& sorted);
  size_t bytes() const { return nodes.size() * 12 + tokens.size() * 4; }
};

// Which tokens stay inside a lexeme, and which leave it: for those, where.
struct LexemeSet {
  std::shared_ptr<const Bits> inside;          // token ids, less `lost`, plus `gained`
  std::vector<int32_t> gained, lost;
  std::shared_ptr<const PreorderTrie> exits;   // what is left of a token behind the lexeme's end, as a trie
  std::vector<int32_t> lost_exits, new_exits;  // trie nodes; only where `exits` are those of a similar lexeme
  size_t own_bytes = 0;
};

class TokenTrie {
 public:
  TokenTrie(const uint8_t* data, const int32_t* offsets, int32_t count);

  PreorderTrie trie;
  std::vector<uint16_t> height;  // of the subtree below a node
  std::vector<uint64_t> below;   // byte groups in that subtree; FRAGMENTS too where the node ends inside a character
  int32_t token_count;
  size_t words;    // of a Bits
  int max_length;  // of a token
  std::vector<uint8_t> text;      // of all tokens
  std::vector<int32_t> offsets;

  std::shared_ptr<const LexemeSet> find_lexeme(const ContentHash& key);
  void keep_lexeme(const ContentHash& key, std::shared_ptr<const LexemeSet> set);

 private:
  void find_groups();

  static constexpr size_t MOST_LEXEME_BYTES = 128 << 20;
  std::mutex mutex_;
  std::list<std::pair<ContentHash, std::shared_ptr<const LexemeSet>>> recent_;  // front: last used
  std::unordered_map<ContentHash, decltype(recent_)::iterator, ContentHash::Hasher> lexemes_;
  size_t lexeme_bytes_ = 0;
};

}  // namespace lmprog
