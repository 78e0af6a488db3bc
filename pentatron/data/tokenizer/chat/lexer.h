/// The parts of a chat template: text and tokens of blocks.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "pentatron/data/tokenizer/chat_template.h"

namespace pentatron::data::tokenizer::chat {

enum class TokenKind : uint8_t {
  kText,       ///< outside of blocks
  kBeginPrint, ///< {{
  kEndPrint,   ///< }}
  kBeginBlock, ///< {%
  kEndBlock,   ///< %}
  kName,
  kString, ///< unescaped
  kInteger,
  kFloat,
  kOperator,
  kEnd
};

struct Token {
  TokenKind kind;
  std::string text;
  int line;
};

/// Comments are dropped; white space around blocks is removed at "-" and as the rules require.
/// Throws DataError for blocks and strings without an end.
std::vector<Token> read_tokens(std::string_view source, const TemplateRules& rules);

} // namespace pentatron::data::tokenizer::chat
