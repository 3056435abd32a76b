// Expressions for text: sets of code points in an encoding, and lists of words with shared beginnings. See fallback/texts.py.
#pragma once

#include <string>

#include "nodes.h"

namespace lmprog {

enum class Encoding : int32_t { utf8 = 0, json_escaped = 1, json_plain = 2 };

struct Range {
  int32_t low, high;  // inclusive
};

// One character out of sorted, disjoint ranges. Surrogates are no characters and are left out.
Id code_points(Nodes& nodes, const std::vector<Range>& ranges, Encoding encoding);
// One of the byte strings.
Id words(Nodes& nodes, std::vector<std::string> choices);

}  // namespace lmprog
