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
  const bool calls = message.contains("tool_calls") && !message["tool_calls"].is_null();
  if (!message.contains("content")) {
    if (calls) message["content"] = nullptr;
    return;
  }
  OrderedJson& content = message["content"];
  if (content.is_null() && !calls) content = "";
  if (content.is_null() || content.is_string()) return;
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
  OrderedJson& messages = variables["messages"];
  std::vector<OrderedJson> forms = {messages}; // what to try, in this order
  bool parsed = false, without = false;
  for (OrderedJson& message : forms[0]) parsed = parse_arguments(message) || parsed;
  if (parsed) forms.push_back(messages);
  for (size_t i = 0, n = forms.size(); i < n; ++i) {
    forms.push_back(forms[i]);
    for (OrderedJson& message : forms.back())
      if (message.is_object() && message.contains("content") && message["content"].is_null()) {
        message["content"] = "";
        without = true;
      }
  }
  if (!without) forms.resize(parsed ? 2 : 1);
  std::string first; // what is wrong with the first form
  for (OrderedJson& some : forms) {
    messages = std::move(some);
    if (marks != nullptr) marks->clear();
    try {
      return form.render(variables, marks, now);
    } catch (const DataError& error) {
      if (first.empty()) first = error.what();
    }
  }
  throw DataError(first);
}

} // namespace pentatron::data::tokenizer
