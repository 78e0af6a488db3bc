/// The tree of a chat template.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "pentatron/data/tokenizer/chat/value.h"
#include "pentatron/data/tokenizer/chat_template.h"

namespace pentatron::data::tokenizer::chat {

enum class NodeKind : uint8_t {
  // Expressions; `text` is a name or an operator.
  kConstant,
  kName,
  kList,
  kDict,
  kAttribute,
  kIndex,
  kSlice,
  kCall,
  kFilter,
  kTest,
  kUnary,
  kBinary,
  kAnd,
  kOr,
  kNot,
  kCondition,
  kCompare,
  kCapture, ///< what statements write, as text
  // Statements.
  kText,
  kPrint,
  kIf,
  kFor,
  kSet,
  kSetBlock,
  kWith,
  kMacro,
  kCallBlock,
  kBreak,
  kContinue,
  kGeneration, ///< a block that marks the model's output
  kBlock
};

using NodePtr = std::unique_ptr<Node>;

/// What the children are:
///   kAttribute, kNot, kUnary, kPrint  the operand             kCapture  the body
///   kIndex     the object, the index      kSlice   the object, from, to, step (null if left out)
///   kCallBlock  the call, the macro that the called one knows as caller
///   kCall      the function, arguments    kFilter, kTest  the operand, arguments
///   kDict      key, value, key, value     kCondition  if true, the condition, else (may be null)
///   kCompare   operands; `names` are the operators between them
///   kIf        condition, block, condition, block, [block]
///   kFor       the iterated, the filter (may be null), body, else (may be null); `names` variables
///   kSet       the value; `names` variables, "a.b" for a member of a namespace
///   kWith      values of `names`, then the body
///   kSetBlock  the body                   kMacro   the body, then default values (may be null)
///   kBlock     statements                 kGeneration  the body
/// Of kCall, kFilter and kTest, `names` has an entry an argument: its keyword, "" or, where the
/// value is a list or dictionary of arguments, "*" or "**".
struct Node {
  NodeKind kind;
  int line;
  std::string text = {};
  Value constant = {};
  std::vector<NodePtr> children = {};
  std::vector<std::string> names = {};
  bool negated = false;              ///< of kTest: is not
  std::set<std::string> extras = {}; ///< of kMacro: of varargs, kwargs and caller those it reads
};

/// Throws DataError, which names the line, for a text that is not a template or uses unsupported
/// syntax.
NodePtr parse(std::string_view source, const TemplateRules& rules);

} // namespace pentatron::data::tokenizer::chat
