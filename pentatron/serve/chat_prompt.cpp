#include "pentatron/serve/chat_prompt.h"

#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "pentatron/base/error.h"
#include "pentatron/base/json.h"
#include "pentatron/base/text.h"
#include "pentatron/data/tokenizer/chat_messages.h"

namespace pentatron::serve {

namespace {

using data::tokenizer::ChatTemplate;

/// Marks the end of the message to continue. Some templates look for this text of transformers'.
constexpr std::string_view kMark = "CONTINUE_FINAL_MESSAGE_TAG ";

std::string render(const ChatTemplate& form, OrderedJson variables, const std::tm& now) {
  try {
    return data::tokenizer::render_messages(form, variables, nullptr, &now);
  } catch (const DataError& error) {
    throw ApiError(400, fmt::format("the chat template: {}", error.what()), "messages");
  }
}

/// Whether the template writes `text` without something, too; not if it then fails.
bool also_gives(const ChatTemplate& form, const OrderedJson& variables, const std::tm& now,
                std::string_view text) {
  try {
    return render(form, variables, now) == text;
  } catch (const ApiError&) {
    return false;
  }
}

void refuse_lost_tools(const ChatTemplate& form, const OrderedJson& variables, const std::tm& now,
                       std::string_view text) {
  OrderedJson without = variables;
  if (without.erase("tools") > 0 && also_gives(form, without, now, text))
    throw ApiError(400,
                   "the model's chat template does not write tools, so the model would not see "
                   "them; send the request without tools",
                   "tools");
  without = variables;
  if (data::tokenizer::remove_tool_calls(without["messages"]) &&
      also_gives(form, without, now, text))
    throw ApiError(400,
                   "the model's chat template does not write tool_calls, so the model would not "
                   "see them; send them as text in content",
                   "messages");
}

/// The text up to the mark, which stands behind `content`.
std::string up_to_mark(std::string text, std::string_view content) {
  const size_t at = text.rfind(trim(kMark));
  if (at == std::string::npos || text.find(trim(content)) == std::string::npos)
    throw ApiError(400,
                   "continue_final_message needs a chat template that writes the content of the "
                   "last message as it is, and the model's template changes it or leaves it out",
                   "continue_final_message");
  const bool trimmed = std::string_view(text).substr(at, kMark.size()) != kMark;
  text.resize(at);
  if (trimmed) text.resize(text.find_last_not_of(" \t\r\n\f\v") + 1);
  return text;
}

} // namespace

std::string chat_text(const CompletionRequest& request, const ChatTemplate& form,
                      const OrderedJson& tokens) {
  OrderedJson variables = request.variables;
  variables.update(tokens);
  variables["add_generation_prompt"] = request.add_generation_prompt;
  std::string content; // to continue
  if (request.continue_final_message) {
    OrderedJson& last = variables["messages"].back()["content"];
    content = last.get<std::string>();
    last = content + std::string(kMark);
  }
  const std::tm now = data::tokenizer::local_time();
  std::string text = render(form, variables, now);
  refuse_lost_tools(form, variables, now, text);
  return request.continue_final_message ? up_to_mark(std::move(text), content) : text;
}

} // namespace pentatron::serve
