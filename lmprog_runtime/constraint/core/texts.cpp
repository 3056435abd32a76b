#include "texts.h"

#include <algorithm>
#include <functional>

namespace lmprog {

namespace {

using Digits = std::vector<int>;
using DigitSet = std::function<Id(int, int)>;  // an expression for one digit between two values

const std::vector<std::pair<int, char>> SHORT_ESCAPES = {{0x08, 'b'}, {0x09, 't'}, {0x0A, 'n'}, {0x0C, 'f'},
                                                         {0x0D, 'r'}, {0x22, '"'}, {0x2F, '/'}, {0x5C, '\\'}};

std::vector<Range> without(const std::vector<Range>& ranges, Range hole) {
  std::vector<Range> left;
  for (const Range& r : ranges) {
    if (r.low < hole.low) left.push_back({r.low, std::min(r.high, hole.low - 1)});
    if (r.high > hole.high) left.push_back({std::max(r.low, hole.high + 1), r.high});
  }
  return left;
}

std::vector<Range> within(const std::vector<Range>& ranges, Range window) {
  std::vector<Range> left;
  for (const Range& r : ranges) {
    if (r.low <= window.high && r.high >= window.low) left.push_back({std::max(r.low, window.low), std::min(r.high, window.high)});
  }
  return left;
}

bool has(const std::vector<Range>& ranges, int value) { return !within(ranges, {value, value}).empty(); }

Digits utf8_digits(int point) {
  if (point < 0x800) return {0xC0 | point >> 6, 0x80 | (point & 63)};
  if (point < 0x10000) return {0xE0 | point >> 12, 0x80 | (point >> 6 & 63), 0x80 | (point & 63)};
  return {0xF0 | point >> 18, 0x80 | (point >> 12 & 63), 0x80 | (point >> 6 & 63), 0x80 | (point & 63)};
}

Digits nibbles(int value) { return {value >> 12 & 15, value >> 8 & 15, value >> 4 & 15, value & 15}; }

class Builder {
 public:
  explicit Builder(Nodes& nodes) : nodes_(nodes) {}

  Id utf8(const std::vector<Range>& ranges) {
    ByteSet ascii;
    for (const Range& r : within(ranges, {0, 0x7F})) {
      for (int byte = r.low; byte <= r.high; byte++) ascii.add(static_cast<uint8_t>(byte));
    }
    std::vector<Id> choices{nodes_.byte_set(ascii)};
    DigitSet byte = [this](int low, int high) { return nodes_.byte_set(ByteSet::range(low, high)); };
    for (Range length : {Range{0x80, 0x7FF}, Range{0x800, 0xFFFF}, Range{0x10000, 0x10FFFF}}) {
      for (const Range& r : within(ranges, length)) {
        choices.push_back(between(utf8_digits(r.low), utf8_digits(r.high), 0x80, 0xBF, byte));
      }
    }
    return nodes_.alternate(choices);
  }

  // \uXXXX, and two of them for code points beyond the first 65,536.
  Id json_hex(const std::vector<Range>& ranges) {
    std::vector<Id> choices;
    for (const Range& r : within(ranges, {0, 0xFFFF})) choices.push_back(unit(r.low, r.high));
    for (const Range& r : within(ranges, {0x10000, 0x10FFFF})) choices.push_back(pairs(r.low - 0x10000, r.high - 0x10000));
    return nodes_.alternate(choices);
  }

  Id short_escapes(const std::vector<Range>& ranges, bool with_slash) {
    ByteSet letters;
    for (auto [point, letter] : SHORT_ESCAPES) {
      if (has(ranges, point) && (with_slash || letter != '/')) letters.add(static_cast<uint8_t>(letter));
    }
    return nodes_.concat(nodes_.byte('\\'), nodes_.byte_set(letters));
  }

 private:
  // Numbers of equal length between two, digit by digit; digits after the first lie between least and most.
  Id between(const Digits& low, const Digits& high, int least, int most, const DigitSet& digit) {
    if (low.size() == 1) return digit(low[0], high[0]);
    const Digits low_rest(low.begin() + 1, low.end()), high_rest(high.begin() + 1, high.end());
    if (low[0] == high[0]) return nodes_.concat(digit(low[0], low[0]), between(low_rest, high_rest, least, most, digit));
    const Digits zeros(low_rest.size(), least), nines(low_rest.size(), most);
    std::vector<Id> choices;
    int first = low[0], last = high[0];
    if (low_rest != zeros) choices.push_back(nodes_.concat(digit(first, first), between(low_rest, nines, least, most, digit))), first++;
    if (high_rest != nines) choices.push_back(nodes_.concat(digit(last, last), between(zeros, high_rest, least, most, digit))), last--;
    if (first <= last) choices.push_back(nodes_.concat(digit(first, last), between(zeros, nines, least, most, digit)));
    return nodes_.alternate(choices);
  }

  Id unit(int low, int high) {
    DigitSet hex = [this](int a, int b) {
      ByteSet set;
      for (int digit = a; digit <= b; digit++) {
        set.add(static_cast<uint8_t>("0123456789abcdef"[digit]));
        set.add(static_cast<uint8_t>("0123456789ABCDEF"[digit]));
      }
      return nodes_.byte_set(set);
    };
    return nodes_.concat(nodes_.literal(reinterpret_cast<const uint8_t*>("\\u"), 2), between(nibbles(low), nibbles(high), 0, 15, hex));
  }

  Id pairs(int low, int high) {
    auto pair = [this](int a, int b, int c, int d) { return nodes_.concat(unit(0xD800 + a, 0xD800 + b), unit(0xDC00 + c, 0xDC00 + d)); };
    int first = low >> 10, last = high >> 10;
    if (first == last) return pair(first, first, low & 1023, high & 1023);
    std::vector<Id> choices{pair(first, first, low & 1023, 1023), pair(last, last, 0, high & 1023)};
    if (first + 1 < last) choices.push_back(pair(first + 1, last - 1, 0, 1023));
    return nodes_.alternate(choices);
  }

  Nodes& nodes_;
};

}  // namespace

Id code_points(Nodes& nodes, const std::vector<Range>& ranges, Encoding encoding) {
  Builder builder(nodes);
  const std::vector<Range> characters = without(ranges, {0xD800, 0xDFFF});
  if (encoding == Encoding::utf8) return builder.utf8(characters);
  std::vector<Range> raw = without(characters, {0x00, 0x1F});
  for (int point : {0x22, 0x5C}) raw = without(raw, {point, point});
  const bool is_plain = encoding == Encoding::json_plain;
  std::vector<Range> spelled = characters;
  if (is_plain) {
    spelled = within(characters, {0x00, 0x1F});
    for (auto [point, letter] : SHORT_ESCAPES) spelled = without(spelled, {point, point});
  }
  return nodes.alternate({builder.utf8(raw), builder.short_escapes(characters, !is_plain), builder.json_hex(spelled)});
}

Id words(Nodes& nodes, std::vector<std::string> choices) {
  std::sort(choices.begin(), choices.end());
  choices.erase(std::unique(choices.begin(), choices.end()), choices.end());
  // Bottom-up: open[d] holds the finished branches behind the current prefix of length d.
  std::vector<std::vector<Id>> open(1);
  for (size_t at = 0; at < choices.size(); at++) {
    const std::string& word = choices[at];
    open.resize(word.size() + 1);
    open.back().push_back(EPSILON);
    size_t common = 0;
    if (at + 1 < choices.size()) {
      const std::string& next = choices[at + 1];
      while (common < word.size() && common < next.size() && word[common] == next[common]) common++;
    }
    while (open.size() - 1 > common) {
      Id branch = nodes.alternate(std::move(open.back()));
      open.pop_back();
      open.back().push_back(nodes.concat(nodes.byte(static_cast<uint8_t>(word[open.size() - 1])), branch));
    }
  }
  return nodes.alternate(std::move(open[0]));
}

}  // namespace lmprog
