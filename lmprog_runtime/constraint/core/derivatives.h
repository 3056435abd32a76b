// Transitions: Brzozowski derivatives, computed when a state is first left by a byte class, and kept. The Python twin is
// fallback/derivatives.py; sealing is fallback/sealing.py.
#pragma once

#include <deque>
#include <memory>
#include <unordered_map>
#include <unordered_set>

#include "nodes.h"

namespace lmprog {

enum class Emptiness : int32_t { no = 0, yes = 1, undecided = 2 };

class Derivatives : public Nodes {
 public:
  explicit Derivatives(const Limits& limits) : Nodes(limits) { forget_transitions(); }

  // The derivative of a state by a byte; EMPTY when the byte is not allowed.
  Id next_state(Id x, uint8_t byte) {
    if (static_cast<size_t>(x) < rows_.size() && rows_[x]) {
      Id found = rows_[x][classes_[byte]];
      if (found >= 0) return found;
    }
    return compute_next(x, byte);
  }
  Id step(Id x, const uint8_t* data, size_t length);
  const ByteSet& first(Id x);  // bytes that may come first; for intersections and complements perhaps more. Valid until the next call
  bool is_final(Id x);         // accepts, and no byte can follow
  Emptiness is_empty(Id x);

  // Last step of building: afterwards every state but EMPTY can reach acceptance with the producible bytes.
  Id seal(Id root, const ByteSet& producible);
  const ByteSet& producible() const { return producible_; }
  Id definition(Id reference) const;
  Id expand(Id x);  // the choice that a member list stands for
  uint8_t byte_class(uint8_t byte) const { return classes_[byte]; }
  size_t bytes() const override;
  void restart_clock() {
    if (is_sealed_) start_clock(limits_.walk_seconds);
  }

 protected:
  void forget_transitions() override;

 private:
  using NodeSet = std::unordered_set<Id>;
  using NodeMap = std::unordered_map<Id, Id>;

  Id compute_next(Id x, uint8_t byte);
  void remember(Id x, uint8_t byte, Id after);
  // `raw` derivatives may be empty without being EMPTY: the search for emptiness itself is made of them.
  Id follow(Id x, uint8_t byte, bool raw) { return raw && is_sealed_ && !is_plain(x) ? raw_next(x, byte) : next_state(x, byte); }
  Id raw_next(Id x, uint8_t byte);
  Id derive(Id x, uint8_t byte, bool raw);
  Id derive_cat(Id x, uint8_t byte, bool raw);
  Id derive_all(Id x, uint8_t byte, bool raw);
  Id derive_alt(Id x, uint8_t byte, bool raw);
  ByteSet compute_first(Id x);
  Id expand_members(Id x);
  bool needs_check(Id x) const { return kind(x) == Kind::all || kind(x) == Kind::complement; }
  bool is_alive(Id x);
  bool is_surely_alive(Id x, int depth) const;
  struct Frame {  // a state of the search, and the byte class that it goes on with
    Id state;
    int next_class;
  };
  Id next_successor(Frame& frame);
  bool is_known_dead(Id x) const;

  std::vector<Id> children(Id x) const;
  std::vector<Id> reachable(Id root) const;
  void check_left_recursion(const std::vector<Id>& order) const;
  NodeSet unproductive(const std::vector<Id>& order, const NodeSet& dead) const;
  bool is_productive_given(Id x, const std::unordered_map<Id, bool>& productive, const NodeSet& alive) const;
  Id rewrite(Id root, const std::vector<Id>& order, const NodeSet& dead);
  Id rebuilt(Id x, const NodeMap& renamed);
  Id rebuilt_members(Id x, const NodeMap& renamed);

  enum Life : uint8_t { unknown, alive, dead };
  std::vector<Id*> rows_;  // per node, by byte class; -1 is unknown
  std::vector<std::unique_ptr<Id[]>> slabs_;
  size_t slab_size_ = 0, slab_used_ = 0, slab_bytes_ = 0;
  std::vector<int32_t> first_index_;  // per node; -1 is unknown
  std::deque<ByteSet> firsts_;
  std::unordered_map<Id, Id> expanded_;
  std::unordered_map<Id, Life> life_;
  std::unordered_map<uint64_t, Id> raw_;  // by node and class
  std::vector<uint8_t> representatives_;  // a byte of each class
  ByteSet producible_ = ByteSet::full();
};

}  // namespace lmprog
