// Hash-consed expressions over bytes and their constructors. The Python twin is fallback/nodes.py: same kinds, same normal
// form. An expression is an index; equal indices are equal languages. Nothing is removed: an arena is dropped as a whole.
#pragma once

#include <time.h>

#include <array>
#include <cstdint>
#include <map>
#include <vector>

namespace lmprog {

using Id = int32_t;

constexpr Id EMPTY = 0;    // matches nothing
constexpr Id EPSILON = 1;  // matches the empty text
constexpr int MAX_NESTING = 150;
constexpr size_t FACTORED_WIDTH = 256;

enum class Kind : uint8_t { empty, epsilon, set, cat, alt, rep, all, complement, reference, lexeme, members };

// Codes that cross the C boundary (limits.py).
enum Code : int32_t { STATES = -2, BYTES = -3, TIME = -4, NESTING = -5, WIDTH = -6, LEFT_RECURSION = -7, UNDEFINED = -8 };

struct Fault {
  Code code;
};

struct Limits {
  int64_t nodes, arena_bytes, search_states, width;
  double compile_seconds, walk_seconds;
};

struct ByteSet {
  std::array<uint64_t, 4> words{};
  bool has(uint8_t byte) const { return words[byte >> 6] >> (byte & 63) & 1; }
  void add(uint8_t byte) { words[byte >> 6] |= 1ull << (byte & 63); }
  bool any() const { return words[0] | words[1] | words[2] | words[3]; }
  bool operator==(const ByteSet& other) const { return words == other.words; }
  ByteSet& operator|=(const ByteSet& other) {
    for (int i = 0; i < 4; i++) words[i] |= other.words[i];
    return *this;
  }
  ByteSet& operator&=(const ByteSet& other) {
    for (int i = 0; i < 4; i++) words[i] &= other.words[i];
    return *this;
  }
  static ByteSet full() { return {{~0ull, ~0ull, ~0ull, ~0ull}}; }
  static ByteSet range(int low, int high) {
    ByteSet set;
    for (int byte = low; byte <= high; byte++) set.add(static_cast<uint8_t>(byte));
    return set;
  }
};

// What a, b, c are: set: index of the set. cat: head, tail. alt, all: offset and length in `lists`. rep: child, low, high
// (-1: no bound). complement, lexeme: child. reference: its number. members: list, seen, count.
struct Node {
  Kind kind;
  uint8_t nullable : 1;
  uint8_t is_plain : 1;  // no intersection, complement or reference inside: not EMPTY means that it has a text
  uint16_t left_depth;
  Id a, b, c;
};

struct MemberList {
  std::vector<Id> pairs;
  std::vector<uint8_t> required;
  Id extra, separator;
  int32_t low, high;  // -1: no bound
  bool any_order;
};

class Nodes {
 public:
  explicit Nodes(const Limits& limits);
  virtual ~Nodes() = default;

  const Node& node(Id x) const { return nodes_[x]; }
  Kind kind(Id x) const { return nodes_[x].kind; }
  bool nullable(Id x) const { return nodes_[x].nullable; }
  const ByteSet& set_of(Id x) const { return sets_[nodes_[x].a]; }
  std::vector<Id> list_of(Id x) const;  // a copy: constructors move the storage
  const Id* list_begin(Id x) const { return lists_.data() + nodes_[x].a; }
  const Id* list_end(Id x) const { return list_begin(x) + nodes_[x].b; }
  size_t size() const { return nodes_.size(); }
  Id everything() const { return everything_; }
  const MemberList& member_list(Id x) const { return member_lists_[nodes_[x].a]; }
  bool is_seen(const MemberList& list, int32_t seen, size_t index) const;
  const std::vector<Id>& definitions() const { return definitions_; }

  Id byte_set(const ByteSet& set);
  Id byte(uint8_t value);
  Id literal(const uint8_t* data, size_t length);
  Id concat(Id a, Id b);
  Id alternate(std::vector<Id> members);
  Id intersect(std::vector<Id> members);  // without a look at whether it is empty
  Id complement(Id a);
  Id repeat(Id a, int32_t low, int32_t high);
  Id lexeme(Id a);
  Id reference(bool nullable);
  void define(Id reference, Id definition);
  Id members(MemberList list);
  Id members_from(int32_t list, int32_t seen, int32_t count);

  void start_clock(double seconds);
  void check_time() const;
  virtual size_t bytes() const;

 protected:
  int32_t with_seen(const MemberList& list, int32_t seen, size_t index);
  void split_classes(const ByteSet& set);
  virtual void forget_transitions() {}
  bool is_plain(Id x) const { return nodes_[x].is_plain; }

  Limits limits_;
  std::vector<Node> nodes_;
  std::vector<Id> lists_;
  std::vector<ByteSet> sets_;
  std::vector<Id> definitions_;
  std::vector<MemberList> member_lists_;
  std::array<uint8_t, 256> classes_{};  // no set of the arena tells two bytes of a class apart
  int class_count_ = 1;
  bool is_sealed_ = false;

 private:
  Id find_or_add(const Node& candidate, const Id* list, const ByteSet* set);
  bool is_same(const Node& existing, const Node& candidate, const Id* list, const ByteSet* set) const;
  Id add(const Node& candidate, const Id* list, const ByteSet* set);
  void grow_table();
  Id unary(Kind kind, Id a, Id b, Id c, bool nullable);
  Id list_node(Kind kind, std::vector<Id>& members, bool nullable);
  void flatten(Kind kind, std::vector<Id>& members) const;
  Id merge_sets(std::vector<Id>& members, bool is_union);
  void factor_tails(std::vector<Id>& members);
  void merge_counts(std::vector<Id>& members);

  std::vector<Id> table_;  // open addressing; -1 is free
  std::vector<uint32_t> hashes_;
  std::vector<std::vector<uint64_t>> seen_sets_;  // of members in any order
  std::map<std::vector<uint64_t>, int32_t> seen_index_;
  Id everything_ = 0;
  double budget_ = 0;              // seconds
  mutable double deadline_ = -1;   // of the calling thread's processor time; negative: not started
  mutable uint32_t ticks_ = 0;
};

}  // namespace lmprog
