#include "pentatron/data/sft/taught_text.h"

#include <algorithm>
#include <optional>

#include "pentatron/base/error.h"

namespace pentatron::data {

namespace {

/// The byte behind each token; none if the tokens do not spell out the text. A token of unknown
/// bytes reaches to where the next one begins.
std::optional<std::vector<size_t>>
ends_of(std::string_view text, const std::vector<int32_t>& tokens, const Tokenizer& tokenizer) {
  std::vector<size_t> ends;
  size_t at = 0;
  bool unknown = false, any = tokens.empty();
  for (const int32_t token : tokens) {
    const std::string bytes = tokenizer.token_bytes(token);
    if (bytes.empty()) {
      unknown = true;
      ends.push_back(text.size());
      continue;
    }
    any = true;
    if (unknown) {
      const size_t next = text.find(bytes, at + 1);
      if (next == std::string_view::npos) return std::nullopt;
      for (auto end = ends.rbegin(); end != ends.rend() && *end == text.size(); ++end) *end = next;
      at = next;
      unknown = false;
    }
    const std::string_view rest = text.substr(at);
    const size_t spaces = std::min(rest.find_first_not_of(" \t\r\n"), rest.size());
    if (rest.starts_with(bytes))
      at += bytes.size();
    else if (bytes[0] == ' ' && rest.starts_with(std::string_view(bytes).substr(1)))
      at += bytes.size() - 1; // a space that the tokenizer put before the text
    else if (rest.substr(spaces).starts_with(bytes))
      at += spaces + bytes.size(); // a special token took the spaces before it along
    else
      return std::nullopt;
    ends.push_back(at);
  }
  const bool all =
      unknown || text.substr(at).find_first_not_of(" \t\r\n") == std::string_view::npos;
  return any && all ? std::optional(ends) : std::nullopt;
}

const OrderedJson* find_text(const OrderedJson& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? &*found : nullptr;
}

/// Roles and contents of ShareGPT's turns.
OrderedJson messages_of_turns(const OrderedJson& turns) {
  if (!turns.is_array()) throw DataError("conversations is not a list");
  OrderedJson messages = OrderedJson::array();
  for (const OrderedJson& turn : turns) {
    if (!turn.is_object() || !find_text(turn, "from") || !find_text(turn, "value"))
      throw DataError("a turn of conversations has no from and value");
    std::string role = turn["from"];
    if (role == "human") role = "user";
    if (role == "gpt") role = "assistant";
    messages.push_back({{"role", role}, {"content", turn["value"]}});
  }
  return messages;
}

TaughtText teach_chat(const OrderedJson& messages, const OrderedJson& tools,
                      const RenderChat& render, const Tokenizer& tokenizer) {
  if (!messages.is_array() || messages.empty()) throw DataError("there are no messages");
  for (const OrderedJson& message : messages)
    if (!message.is_object() || find_text(message, "role") == nullptr)
      throw DataError("a message has no role");
  const ChatText chat = render ? render(messages, tools) : render_chatml(messages, tools);
  return teach_spans(chat.text, chat.answers, tokenizer);
}

/// The prompt of Stanford Alpaca.
std::string alpaca_prompt(const std::string& instruction, const std::string& input) {
  if (input.empty())
    return fmt::format("Below is an instruction that describes a task. Write a response that "
                       "appropriately completes the request.\n\n### Instruction:\n{}\n\n### "
                       "Response:\n",
                       instruction);
  return fmt::format("Below is an instruction that describes a task, paired with an input that "
                     "provides further context. Write a response that appropriately completes the "
                     "request.\n\n### Instruction:\n{}\n\n### Input:\n{}\n\n### Response:\n",
                     instruction, input);
}

TaughtText with_end(TaughtText text, const Tokenizer& tokenizer) {
  if (tokenizer.eod() >= 0) {
    text.tokens.push_back(tokenizer.eod());
    text.taught.push_back(1);
  }
  return text;
}

TaughtText teach_completion(const std::string& prompt, const std::string& completion,
                            const Tokenizer& tokenizer) {
  const std::string text = prompt + completion;
  return with_end(teach_spans(text, {{prompt.size(), text.size()}}, tokenizer), tokenizer);
}

} // namespace

TaughtText teach_spans(std::string_view text, const std::vector<TextSpan>& spans,
                       const Tokenizer& tokenizer) {
  TaughtText result;
  tokenizer.encode(text, result.tokens);
  result.taught.assign(result.tokens.size(), 0);
  if (const auto ends = ends_of(text, result.tokens, tokenizer)) {
    for (const TextSpan& span : spans) {
      if (span.begin >= span.end) continue;
      // From the token with the first byte to that with the last.
      const auto first = std::ranges::upper_bound(*ends, span.begin) - ends->begin();
      const auto last = std::ranges::upper_bound(*ends, span.end - 1) - ends->begin();
      for (auto i = first; i <= last && i < std::ssize(result.taught); ++i)
        result.taught[static_cast<size_t>(i)] = 1;
    }
    return result;
  }
  result.tokens.clear();
  result.taught.clear();
  size_t done = 0;
  const auto go_on = [&](size_t end, uint8_t taught) {
    if (end > done) tokenizer.encode(text.substr(done, end - done), result.tokens);
    result.taught.resize(result.tokens.size(), taught);
    done = std::max(done, end);
  };
  for (const TextSpan& span : spans) {
    go_on(span.begin, 0);
    go_on(span.end, 1);
  }
  go_on(text.size(), 0);
  return result;
}

TaughtText teach_record(std::string_view record, const RenderChat& render,
                        const Tokenizer& tokenizer, const std::string& text_key) {
  parse_json(record, "the example"); // with its bounds, and an error that people can read
  const OrderedJson json = OrderedJson::parse(record);
  if (!json.is_object()) throw DataError("it is not an object");
  const auto member = [&](const char* name) {
    const auto found = json.find(name);
    return found == json.end() ? OrderedJson() : *found;
  };
  if (json.contains("messages"))
    return teach_chat(member("messages"), member("tools"), render, tokenizer);
  if (json.contains("conversations"))
    return teach_chat(messages_of_turns(member("conversations")), member("tools"), render,
                      tokenizer);
  const auto text = [&](const char* name) {
    const OrderedJson* found = find_text(json, name);
    return found == nullptr ? std::optional<std::string>() : found->get<std::string>();
  };
  if (const auto prompt = text("prompt"), completion = text("completion"); prompt && completion)
    return teach_completion(*prompt, *completion, tokenizer);
  if (const auto instruction = text("instruction"), output = text("output");
      instruction && output) {
    const std::string input = text("input").value_or("");
    if (!render) return teach_completion(alpaca_prompt(*instruction, input), *output, tokenizer);
    const std::string question = input.empty() ? *instruction : *instruction + "\n\n" + input;
    OrderedJson messages = OrderedJson::array();
    messages.push_back({{"role", "user"}, {"content", question}});
    messages.push_back({{"role", "assistant"}, {"content", *output}});
    return teach_chat(messages, nullptr, render, tokenizer);
  }
  if (const auto all = text(text_key.c_str()))
    return with_end(teach_spans(*all, {{0, all->size()}}, tokenizer), tokenizer);
  raise<DataError>("it has none of {}", kTaughtMembers);
}

} // namespace pentatron::data
