#include "pentatron/data/tokenizer/chat_template.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "pentatron/base/error.h"
#include "pentatron/data/tokenizer/chat/interpreter.h"

namespace pentatron::data::tokenizer {

namespace chat {

struct Program {
  NodePtr root;
  TemplateRules rules;
  bool marks_answers = false;
};

namespace {

void collect_names(const Node& node, std::set<std::string>& names) {
  if (node.kind == NodeKind::kName) names.insert(node.text);
  for (const NodePtr& child : node.children)
    if (child != nullptr) collect_names(*child, names);
}

bool has_generation(const Node& node) {
  return node.kind == NodeKind::kGeneration ||
         std::ranges::any_of(node.children, [](const NodePtr& child) {
           return child != nullptr && has_generation(*child);
         });
}

} // namespace
} // namespace chat

ChatTemplate::ChatTemplate(std::string_view source, const TemplateRules& rules)
    : program_(std::make_unique<chat::Program>(chat::Program{chat::parse(source, rules), rules})) {
  program_->marks_answers = chat::has_generation(*program_->root);
}
ChatTemplate::~ChatTemplate() = default;
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;

bool ChatTemplate::marks_answers() const {
  return program_->marks_answers;
}

namespace {

/// The thoughts of a message under the names that templates read, as transformers: those of the
/// first name that a message has stand under reasoning_content, and under thinking if that is not
/// there.
void name_thoughts(nlohmann::ordered_json& message) {
  for (const char* name : {"reasoning_content", "thinking", "reasoning"}) {
    if (!message.contains(name)) continue;
    const nlohmann::ordered_json thoughts = message[name];
    if (!message.contains("thinking")) {
      nlohmann::ordered_json named;
      named["thinking"] = thoughts; // in front, where transformers puts it
      named.update(message);
      message = std::move(named);
    }
    message["reasoning_content"] = thoughts;
    return;
  }
}

/// What is null in a message is left out: templates would print None. Of a message that only calls
/// tools they ask whether the content is none.
nlohmann::ordered_json for_templates(nlohmann::ordered_json messages) {
  if (!messages.is_array()) return messages;
  for (nlohmann::ordered_json& message : messages) {
    if (!message.is_object()) continue;
    nlohmann::ordered_json kept = nlohmann::ordered_json::object();
    for (const auto& [key, value] : message.items())
      if (!value.is_null() || (key == "content" && message.contains("tool_calls")))
        kept[key] = value;
    name_thoughts(kept);
    message = std::move(kept);
  }
  return messages;
}

} // namespace

std::string ChatTemplate::render(const nlohmann::ordered_json& variables,
                                 std::vector<std::pair<size_t, size_t>>* marks,
                                 const std::tm* now) const {
  chat::Scope scope;
  if (!variables.is_object()) throw DataError("the variables of a chat template are not an object");
  const bool chat = !program_->rules.strict_undefined;
  if (chat) // as transformers
    for (const char* name : {"tools", "documents"}) scope[name] = chat::None{};
  for (const auto& [name, value] : variables.items())
    scope[name] = chat::from_json(chat && name == "messages" ? for_templates(value) : value);
  return chat::interpret(*program_->root, std::move(scope), program_->rules, now, marks);
}

std::set<std::string> ChatTemplate::names() const {
  std::set<std::string> names;
  chat::collect_names(*program_->root, names);
  return names;
}

} // namespace pentatron::data::tokenizer
