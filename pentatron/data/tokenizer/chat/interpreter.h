/// Runs the tree of a chat template.
#pragma once

#include <ctime>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "pentatron/data/tokenizer/chat/parser.h"

namespace pentatron::data::tokenizer::chat {

using Scope = std::unordered_map<std::string, Value>;

/// The text that it writes. `now` may be null: strftime_now is not defined. `marks` receives the
/// bytes of each generation block; null: they are not wanted.
std::string interpret(const Node& root, Scope variables, const TemplateRules& rules,
                      const std::tm* now, std::vector<std::pair<size_t, size_t>>* marks);

} // namespace pentatron::data::tokenizer::chat
