#include "pentatron/data/tokenizer/chat_messages.h"

#include <algorithm>
#include <optional>

#include "pentatron/base/error.h"
#include "pentatron/base/json.h"

namespace pentatron::data::tokenizer {

namespace {

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
      OrderedJson parsed = parse_ordered_json(text, "arguments");
      if (!parsed.is_object()) continue;
      function["arguments"] = std::move(parsed);
      any = true;
    } catch (const DataError&) {
      continue; // as the model wrote them
    }
  }
  return any;
}

/// OpenAI's older form of tool calls, and its refusals, as the messages of today.
void renew_message(OrderedJson& message) {
  const auto is_null = [&](const char* name) {
    return !message.contains(name) || message[name].is_null();
  };
  const auto is_role = [&](const char* name) { return message.value("role", "") == name; };
  if (is_role("developer")) message["role"] = "system";
  if (is_role("function")) message["role"] = "tool";
  if (!is_null("function_call") && is_null("tool_calls"))
    message["tool_calls"] =
        OrderedJson::array({{{"type", "function"}, {"function", message["function_call"]}}});
  message.erase("function_call");
  if (!is_null("refusal") && message["refusal"].is_string() && is_null("content"))
    message["content"] = message["refusal"];
  message.erase("refusal");
}

/// The messages with "" for a content of null; none if no content is null.
std::optional<OrderedJson> with_empty_contents(OrderedJson messages) {
  bool any = false;
  for (OrderedJson& message : messages)
    if (message.is_object() && message.contains("content") && message["content"].is_null()) {
      message["content"] = "";
      any = true;
    }
  return any ? std::optional(std::move(messages)) : std::nullopt;
}

/// Whether a text is another one with "None" here and there.
bool only_adds_none(std::string_view text, std::string_view other) {
  constexpr std::string_view kNone = "None";
  while (text != other) {
    const auto [a, b] = std::ranges::mismatch(text, other);
    text.remove_prefix(static_cast<size_t>(a - text.begin()));
    other.remove_prefix(static_cast<size_t>(b - other.begin()));
    if (!text.starts_with(kNone)) return false;
    text.remove_prefix(kNone.size());
  }
  return true;
}

} // namespace

void take_message(OrderedJson& message, std::string_view where) {
  renew_message(message);
  const bool calls = message.contains("tool_calls") && message["tool_calls"].is_array() &&
                     !message["tool_calls"].empty();
  if (!message.contains("content")) {
    if (message.contains("tool_calls"))
      message["content"] = calls ? OrderedJson() : OrderedJson("");
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

bool remove_tool_calls(OrderedJson& messages) {
  bool any = false;
  for (OrderedJson& message : messages) {
    if (!message.is_object() || !message.contains("tool_calls")) continue;
    any = any || !message["tool_calls"].empty(); // null is empty
    message.erase("tool_calls");
    if (message.contains("content") && message["content"].is_null()) message["content"] = "";
  }
  return any;
}

std::string render_messages(const ChatTemplate& form, OrderedJson& variables,
                            std::vector<std::pair<size_t, size_t>>* marks, const std::tm* now) {
  OrderedJson& messages = variables["messages"];
  const OrderedJson given = messages;
  OrderedJson objects = given;
  bool parsed = false;
  for (OrderedJson& message : objects) parsed = parse_arguments(message) || parsed;
  std::string fault; // of the first form
  const auto render = [&](const OrderedJson& some) -> std::optional<std::string> {
    messages = some;
    if (marks != nullptr) marks->clear();
    try {
      return form.render(variables, marks, now);
    } catch (const DataError& error) {
      if (fault.empty()) fault = error.what();
      return std::nullopt;
    }
  };
  for (const OrderedJson* some : {parsed ? &objects : &given, &given}) {
    const std::optional<OrderedJson> emptied = with_empty_contents(*some);
    const auto text = render(*some);
    if (text && !emptied) return *text;
    const auto other = emptied ? render(*emptied) : std::nullopt;
    if (other && (!text || only_adds_none(*text, *other))) return *other;
    if (text) return *render(*some); // again, for its marks
  }
  throw DataError(fault);
}

} // namespace pentatron::data::tokenizer
