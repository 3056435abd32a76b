#include "trie.h"

#include <algorithm>
#include <string>

namespace lmprog {

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
