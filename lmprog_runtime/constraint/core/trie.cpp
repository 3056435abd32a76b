#include "trie.h"

#include <algorithm>
#include <string>

namespace lmprog {

uint64_t byte_group(uint8_t byte) {
  if (byte >= 'a' && byte <= 'z') return 1ull << (byte - 'a');
  if (byte >= 'A' && byte <= 'Z') return 1ull << (26 + byte - 'A');
  if (byte >= '0' && byte <= '9') return 1ull << 52;
  if (byte < ' ' || byte == 0x7F) return 1ull << 53;
  constexpr char ALONE[] = {' ', '"', '\\', '-', '_', '.'};
  for (size_t i = 0; i < sizeof(ALONE); i++) {
    if (byte == ALONE[i]) return 1ull << (54 + i);
  }
  return 1ull << 61;
}

int next_in_character(int place, uint8_t byte) {
  const bool follows = byte >= 0x80 && byte < 0xC0;
  switch (place) {
    case 0:
      if (byte < 0x80) return 0;
      if (byte < 0xC2 || byte > 0xF4) return -1;
      if (byte < 0xE0) return 1;
      if (byte < 0xF0) return byte == 0xE0 ? 4 : byte == 0xED ? 5 : 2;
      return byte == 0xF0 ? 6 : byte == 0xF4 ? 7 : 3;
    case 4:  // no longer spelling than needed
      return follows && byte >= 0xA0 ? 1 : -1;
    case 5:  // no surrogates
      return follows && byte < 0xA0 ? 1 : -1;
    case 6:
      return follows && byte >= 0x90 ? 2 : -1;
    case 7:  // nothing beyond U+10FFFF
      return follows && byte < 0x90 ? 2 : -1;
    default:
      return follows ? place - 1 : -1;
  }
}

PreorderTrie PreorderTrie::build(const std::vector<std::pair<std::string, int32_t>>& sorted) {
  PreorderTrie trie;
  const std::string* previous = nullptr;
  for (const auto& [text, token] : sorted) {
    size_t common = 0;
    if (previous) {
      while (common < text.size() && common < previous->size() && text[common] == (*previous)[common]) common++;
    }
    for (size_t i = common; i < text.size(); i++) {
      trie.nodes.push_back({0, static_cast<uint16_t>(i + 1), static_cast<uint8_t>(text[i])});
      trie.token_end.push_back(static_cast<int32_t>(trie.tokens.size()));
    }
    trie.tokens.push_back(token);
    trie.token_end.back() = static_cast<int32_t>(trie.tokens.size());
    previous = &text;
  }
  const int32_t count = static_cast<int32_t>(trie.size());
  for (Node& node : trie.nodes) node.skip = count;
  std::vector<int32_t> open;
  for (int32_t i = 0; i < count; i++) {
    while (!open.empty() && trie.nodes[open.back()].depth >= trie.nodes[i].depth) {
      trie.nodes[open.back()].skip = i;
      open.pop_back();
    }
    open.push_back(i);
  }
  return trie;
}

TokenTrie::TokenTrie(const uint8_t* data, const int32_t* token_offsets, int32_t count)
    : token_count(count), words((count + 63) / 64), max_length(0), text(data, data + token_offsets[count]),
      offsets(token_offsets, token_offsets + count + 1) {
  std::vector<std::pair<std::string, int32_t>> sorted;
  for (int32_t id = 0; id < count; id++) {
    int length = offsets[id + 1] - offsets[id];
    max_length = std::max(max_length, length);
    if (length > 0) sorted.emplace_back(std::string(text.begin() + offsets[id], text.begin() + offsets[id + 1]), id);
  }
  std::sort(sorted.begin(), sorted.end());
  trie = PreorderTrie::build(sorted);
  height.assign(trie.size(), 0);
  for (int32_t i = static_cast<int32_t>(trie.size()) - 1; i >= 0; i--) {
    for (int32_t child = i + 1; child < trie.nodes[i].skip; child = trie.nodes[child].skip) {
      height[i] = std::max<uint16_t>(height[i], static_cast<uint16_t>(height[child] + 1));
    }
  }
  find_groups();
}

void TokenTrie::find_groups() {
  const int32_t count = static_cast<int32_t>(trie.size());
  std::vector<int> places(max_length + 1, 0), place_of(count);  // by depth; by node
  for (int32_t i = 0; i < count; i++) {
    const int before = places[trie.nodes[i].depth - 1];
    place_of[i] = places[trie.nodes[i].depth] = before < 0 ? -1 : next_in_character(before, trie.nodes[i].byte);
  }
  below.assign(count, 0);
  for (int32_t i = count - 1; i >= 0; i--) {
    for (int32_t child = i + 1; child < trie.nodes[i].skip; child = trie.nodes[child].skip) {
      const uint8_t byte = trie.nodes[child].byte;
      below[i] |= below[child] | (place_of[child] < 0 ? FRAGMENTS : byte < 0x80 ? byte_group(byte) : CHARACTERS);
    }
  }
  for (int32_t i = 0; i < count; i++) {
    if (place_of[i] != 0) below[i] |= FRAGMENTS;
  }
}

std::shared_ptr<const LexemeSet> TokenTrie::find_lexeme(const ContentHash& key) {
  std::lock_guard<std::mutex> guard(mutex_);
  auto found = lexemes_.find(key);
  if (found == lexemes_.end()) return nullptr;
  recent_.splice(recent_.begin(), recent_, found->second);
  return found->second->second;
}

void TokenTrie::keep_lexeme(const ContentHash& key, std::shared_ptr<const LexemeSet> set) {
  std::lock_guard<std::mutex> guard(mutex_);
  if (lexemes_.count(key)) return;
  lexeme_bytes_ += set->own_bytes;
  recent_.emplace_front(key, std::move(set));
  lexemes_[key] = recent_.begin();
  while (lexeme_bytes_ > MOST_LEXEME_BYTES && recent_.size() > 1) {
    lexeme_bytes_ -= recent_.back().second->own_bytes;
    lexemes_.erase(recent_.back().first);
    recent_.pop_back();
  }
}

}  // namespace lmprog
