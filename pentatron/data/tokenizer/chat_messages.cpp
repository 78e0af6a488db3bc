#include "pentatron/data/tokenizer/chat_messages.h"

#include "pentatron/base/error.h"
#include "pentatron/base/json.h"

namespace pentatron::data::tokenizer {

namespace {

using OrderedJson = nlohmann::ordered_json;

/// Replaces arguments that are objects within strings; returns whether there were any.
bool parse_arguments(OrderedJson& message) {
  if (!message.is_object() || !message.contains("tool_calls") || !message["tool_calls"].is_array())
    return false;
  bool any = false;
  for (OrderedJson& call : message["tool_calls"]) {
    if (!call.is_object() || !call.contains("function") || !call["function"].is_object()) continue;
    OrderedJson& function = call["function"];
    if (!function.contains("arguments") || !function["arguments"].is_string()) continue;
    const std::string text = function["arguments"];
    try {
      const Json parsed = parse_json(text, "arguments"); // with its limits
      if (!parsed.is_object()) continue;
      function["arguments"] = OrderedJson::parse(text);
      any = true;
    } catch (const DataError&) {
      continue; // as the model wrote them
    }
  }
  return any;
}

} // namespace

void take_message(OrderedJson& message, std::string_view where) {
  if (message.contains("role") && message["role"] == "developer") message["role"] = "system";
  if (!message.contains("content")) {
    if (message.contains("tool_calls")) message["content"] = "";
    return;
  }
  OrderedJson& content = message["content"];
  if (content.is_null()) content = "";
  if (content.is_string()) return;
  if (!content.is_array())
    raise<DataError>("{}.content must be a string or a list of parts", where);
  std::string text;
  for (const OrderedJson& part : content) {
    const bool is_text = part.is_object() && part.value("type", OrderedJson()) == "text" &&
                         part.contains("text") && part["text"].is_string();
    if (!is_text)
      raise<DataError>("{}.content may only have parts of type text, because the model only reads "
                       "text",
                       where);
    text += part["text"].get<std::string>();
  }
  content = text;
}

std::string render_messages(const ChatTemplate& form, OrderedJson& variables,
                            std::vector<std::pair<size_t, size_t>>* marks, const std::tm* now) {
  const OrderedJson given = variables["messages"];
  bool parsed = false;
  for (OrderedJson& message : variables["messages"]) parsed = parse_arguments(message) || parsed;
  if (!parsed) return form.render(variables, marks, now);
  std::string objects; // what is wrong with them
  try {
    return form.render(variables, marks, now);
  } catch (const DataError& error) {
    objects = error.what();
  }
  variables["messages"] = given;
  if (marks != nullptr) marks->clear();
  try {
    return form.render(variables, marks, now);
  } catch (const DataError&) { // so the form of arguments is not what is wrong
    throw DataError(objects);
  }
}

} // namespace pentatron::data::tokenizer
