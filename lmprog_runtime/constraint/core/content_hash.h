// A name for an expression that is the same in all arenas, so that what is computed for one grammar serves the others.
#pragma once

#include <cstdint>
#include <unordered_map>

#include "derivatives.h"

namespace lmprog {

struct ContentHash {
  uint64_t high = 0, low = 0;
  bool operator==(const ContentHash& other) const { return high == other.high && low == other.low; }
  bool operator<(const ContentHash& other) const { return high != other.high ? high < other.high : low < other.low; }
  struct Hasher {
    size_t operator()(const ContentHash& hash) const { return hash.low; }
  };
};

// Hashes of one arena's expressions. 128 bits, keyed with a secret of the process: nobody can make two expressions collide.
// References get a name of their own, since their content may be infinite; what has one is not shared between arenas.
class ContentHasher {
 public:
  explicit ContentHasher(Derivatives& nodes);
  ContentHash of(Id x);

 private:
  ContentHash combine(Id x);
  void push_missing_children(Id x, std::vector<Id>& stack);

  Derivatives& nodes_;
  uint64_t arena_number_;
  std::unordered_map<Id, ContentHash> known_;
};

}  // namespace lmprog
