// The shortest text of a state: how a generation can end soonest. The length of an expression follows from its parts; only
// intersections and complements are searched. The Python twin is fallback/shortest.py.
#pragma once

#include <unordered_map>
#include <vector>

#include "derivatives.h"

namespace lmprog {

class Shortest {
 public:
  static constexpr int32_t FAR = 1 << 30;  // no text, or none within the limits

  explicit Shortest(Derivatives& nodes) : nodes_(nodes) {}

  int32_t length(Id x);
  // Of all texts of that length the first in the order of bytes, so that what is left of it behind a byte is the text of the
  // state there. length(x) must not be FAR.
  void write(Id x, uint8_t* out);
  size_t bytes() const { return lengths_.capacity() * 4 + searched_.size() * 48; }

 private:
  struct Found {  // by a search
    int32_t length;
    uint8_t byte;  // that comes first
  };
  static int32_t sum(int64_t a, int64_t b) { return static_cast<int32_t>(std::min<int64_t>(a + b, FAR)); }
  int32_t& known(Id x);
  int32_t solve(Id x);
  void solve_references();
  std::vector<Id> parts(Id x) const;
  int32_t combine(Id x);
  int32_t members_length(Id x);
  uint8_t first_byte(Id x);
  uint8_t first_byte_of_any(Id x);
  Found search(Id x);

  Derivatives& nodes_;
  std::vector<int32_t> lengths_;  // per node; -1 is unknown
  std::vector<int32_t> references_;
  std::unordered_map<Id, Found> searched_;
  bool is_prepared_ = false;
};

}  // namespace lmprog
