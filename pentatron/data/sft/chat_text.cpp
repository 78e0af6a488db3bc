#include "pentatron/data/sft/chat_text.h"

#include <optional>
#include <utility>

#include "pentatron/base/error.h"
#include "pentatron/base/json.h"
#include "pentatron/data/sft/locate_answers.h"
#include "pentatron/data/tokenizer/chat_messages.h"
#include "pentatron/data/tokenizer/open.h"

namespace pentatron::data {

namespace {

std::string text_of(const OrderedJson& message, const char* name) {
  if (!message.is_object()) throw DataError("a message is not an object");
  const auto found = message.find(name);
  if (found == message.end() || !found->is_string())
    raise<DataError>("a message has no text \"{}\"", name);
  return found->get<std::string>();
}

/// Its masks end with the first token of the last character.
TextSpan as_transformers(TextSpan span, std::string_view text) {
  while (span.end > span.begin + 1 &&
         (static_cast<unsigned char>(text[span.end - 1]) & 0xC0) == 0x80)
    --span.end;
  return span;
}

} // namespace

ChatText render_chatml(const OrderedJson& messages, const OrderedJson&, ChatEnd end) {
  ChatText chat;
  for (const OrderedJson& message : messages) {
    const std::string role = text_of(message, "role");
    chat.text += fmt::format("<|im_start|>{}\n", role);
    const size_t begin = chat.text.size();
    const auto content = message.find("content");
    const bool empty = content != message.end() && content->is_null(); // beside tool calls
    chat.text += (empty ? "" : text_of(message, "content")) + kChatmlEnd + "\n";
    if (role == "assistant") chat.answers.push_back({begin, chat.text.size()});
  }
  if (end == ChatEnd::kAnswer) chat.text += "<|im_start|>assistant\n";
  return chat;
}

RenderChat render_by(std::shared_ptr<const tokenizer::ChatTemplate> program, OrderedJson names,
                     std::optional<std::tm> date) {
  return [program = std::move(program), names = std::move(names),
          date](const OrderedJson& messages, const OrderedJson& tools, ChatEnd end) {
    OrderedJson variables = names;
    variables["tools"] = tools;
    variables["messages"] = messages;
    variables["add_generation_prompt"] = end == ChatEnd::kAnswer;
    std::vector<std::pair<size_t, size_t>> marks;
    ChatText chat;
    chat.text = tokenizer::render_messages(*program, variables, &marks, date ? &*date : nullptr);
    if (end == ChatEnd::kAnswer) return chat;
    if (program->marks_answers()) {
      for (const auto& [first, last] : marks)
        chat.answers.push_back(as_transformers({first, last}, chat.text));
      return chat;
    }
    const OrderedJson taken = variables["messages"];
    for (const OrderedJson& message : taken) text_of(message, "role");
    chat.answers = locate_answers(
        taken, chat.text, [&](const OrderedJson& some, bool prompt) -> std::optional<std::string> {
          variables["messages"] = some;
          variables["add_generation_prompt"] = prompt;
          try {
            return program->render(variables, nullptr, date ? &*date : nullptr);
          } catch (const DataError&) { // which the whole conversation is not to blame for
            return std::nullopt;
          }
        });
    return chat;
  };
}

RenderChat open_chat_template(const std::filesystem::path& tokenizer, const std::string& date) {
  const std::optional<std::string> source = tokenizer::find_chat_template(tokenizer);
  if (!source) return {};
  OrderedJson names = OrderedJson::object();
  for (const char* name : {"bos_token", "eos_token", "unk_token", "pad_token"})
    if (const std::string token = tokenizer::configured_token(tokenizer, name); !token.empty())
      names[name] = token;
  return render_by(std::make_shared<const tokenizer::ChatTemplate>(*source), std::move(names),
                   tokenizer::read_date(date));
}

} // namespace pentatron::data
