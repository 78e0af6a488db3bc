#include "pentatron/data/sft/taught_text.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "pentatron/base/error.h"
#include "pentatron/base/json.h"
#include "pentatron/data/sft/read_example.h"
#include "pentatron/data/tokenizer/chat_messages.h"

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

/// What the tokenizer puts before every text, such as <s>.
std::vector<int32_t> tokens_before(const Tokenizer& tokenizer) {
  std::vector<int32_t> plain, whole;
  tokenizer.encode("a", plain);
  tokenizer.encode_with_special("a", whole);
  return {whole.begin(), std::search(whole.begin(), whole.end(), plain.begin(), plain.end())};
}

bool begins_with(const std::vector<int32_t>& tokens, const std::vector<int32_t>& begin) {
  return std::ranges::mismatch(tokens, begin).in2 == begin.end();
}

ChatText rendered(const Example& example, const RenderChat& render, ChatEnd end) {
  return render ? render(example.messages, example.tools, end)
                : render_chatml(example.messages, example.tools, end);
}

bool is_answer(const OrderedJson& message) {
  return message["role"] == "assistant";
}

/// Whether the template leaves out the tools or tool calls of a conversation.
bool leaves_out_tools(const Example& example, const RenderChat& render) {
  const auto calls = [](const OrderedJson& message) { return message.contains("tool_calls"); };
  if (example.tools.is_null() && std::ranges::none_of(example.messages, calls)) return false;
  Example without_tools = example, without_calls = example;
  without_tools.tools = OrderedJson();
  const bool has_calls = tokenizer::remove_tool_calls(without_calls.messages);
  if (example.tools.is_null() && !has_calls) return false;
  // As a prompt, in which nobody looks for answers; none if the template needs what is missing.
  const auto text_of = [&](const Example& one) -> std::optional<std::string> {
    try {
      return rendered(one, render, ChatEnd::kAnswer).text;
    } catch (const DataError&) {
      return std::nullopt;
    }
  };
  const std::optional<std::string> text = text_of(example);
  return text && ((!example.tools.is_null() && text_of(without_tools) == text) ||
                  (has_calls && text_of(without_calls) == text));
}

/// The conversation with the answers to learn.
ChatText learned(const Example& example, const RenderChat& render) {
  ChatText chat = rendered(example, render, ChatEnd::kNothing);
  const std::vector<uint8_t>& skipped = example.skipped;
  if (std::ranges::count(skipped, 1) == 0) return chat;
  const bool one_each =
      std::ranges::count_if(example.messages, is_answer) == std::ssize(chat.answers);
  /// So many answers stand in the first `count` messages.
  const auto answers_in = [&](size_t count) {
    if (one_each)
      return std::count_if(example.messages.begin(),
                           example.messages.begin() + static_cast<std::ptrdiff_t>(count),
                           is_answer);
    if (count == 0 || count == skipped.size()) return count == 0 ? 0 : std::ssize(chat.answers);
    Example part = example; // the template marks others, too, or not all
    while (part.messages.size() > count) part.messages.erase(part.messages.size() - 1);
    return std::min(std::ssize(rendered(part, render, ChatEnd::kNothing).answers),
                    std::ssize(chat.answers));
  };
  std::vector<TextSpan> kept;
  for (size_t begin = 0; begin < skipped.size();) {
    size_t end = begin;
    while (end < skipped.size() && skipped[end] == skipped[begin]) ++end;
    if (skipped[begin] == 0)
      for (auto i = answers_in(begin), last = answers_in(end); i < last; ++i)
        kept.push_back(chat.answers[static_cast<size_t>(i)]);
    begin = end;
  }
  chat.answers = std::move(kept);
  return chat;
}

/// Whether answers are left out because of their weight, not because they are in the prompt.
bool has_skipped_answers(const Example& example) {
  for (size_t i = example.asked; i < example.skipped.size(); ++i)
    if (example.skipped[i] != 0) return true;
  return false;
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
      // From the token with the first byte to that with the last; a space that the tokenizer put
      // before the text is of no byte.
      const auto first =
          span.begin == 0 ? 0 : std::ranges::upper_bound(*ends, span.begin) - ends->begin();
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

std::vector<int32_t> encode_begun(std::string_view text, const Tokenizer& tokenizer) {
  std::vector<int32_t> tokens;
  tokenizer.encode(text, tokens);
  const std::vector<int32_t> before = tokens_before(tokenizer);
  if (!begins_with(tokens, before)) tokens.insert(tokens.begin(), before.begin(), before.end());
  return tokens;
}

std::vector<std::string> taught_members(const std::string& text_key) {
  return {"messages", "tools",  "conversations", "system", "prompt",  "completion", "instruction",
          "input",    "output", "history",       "label",  "kto_tag", text_key};
}

TaughtText teach_record(std::string_view record, const RenderChat& render,
                        const Tokenizer& tokenizer, const std::string& text_key) {
  const Example example = read_example(record, render != nullptr, text_key, Answer::kNeeded);
  if (!example.messages.is_null()) {
    const ChatText chat = learned(example, render);
    TaughtText taught = teach_spans(chat.text, chat.answers, tokenizer);
    taught.without_tools = leaves_out_tools(example, render);
    taught.without_weight = chat.answers.empty() && has_skipped_answers(example);
    return taught;
  }
  const std::string text = example.prompt + *example.completion;
  TaughtText taught = teach_spans(text, {{example.prompt.size(), text.size()}}, tokenizer);
  const std::vector<int32_t> before = tokens_before(tokenizer);
  if (!begins_with(taught.tokens, before)) {
    taught.tokens.insert(taught.tokens.begin(), before.begin(), before.end());
    taught.taught.insert(taught.taught.begin(), before.size(), 0);
  }
  if (tokenizer.eod() >= 0) {
    taught.tokens.push_back(tokenizer.eod());
    taught.taught.push_back(1);
  }
  return taught;
}

std::vector<int32_t> prompt_of_record(std::string_view record, const RenderChat& render,
                                      const Tokenizer& tokenizer, const std::string& text_key) {
  Example example = read_example(record, render != nullptr, text_key, Answer::kOptional);
  if (example.messages.is_null())
    return encode_begun(example.prompt.empty() ? example.completion.value_or("") : example.prompt,
                        tokenizer);
  if (example.asked > 0)
    example.messages.erase(example.messages.begin() + static_cast<std::ptrdiff_t>(example.asked),
                           example.messages.end());
  else if (example.messages.back()["role"] == "assistant")
    example.messages.erase(example.messages.size() - 1);
  std::vector<int32_t> tokens;
  tokenizer.encode(rendered(example, render, ChatEnd::kAnswer).text, tokens);
  return tokens;
}

TaughtText teach_pair(std::string_view record, const Tokenizer& tokenizer, int32_t end) {
  const Example example = read_example(record, false, "text", Answer::kOfPrompt);
  if (!example.messages.is_null())
    raise<DataError>("it is a conversation, and a model with an encoder has no chat template\n  "
                     "try: objects with {}",
                     kPairMembers);
  if (example.prompt.empty())
    raise<DataError>(
        "it has no prompt, which a model with an encoder needs\n  try: objects with {}",
        kPairMembers);
  TaughtText pair{.tokens = encode_begun(example.prompt, tokenizer), .taught = {}};
  pair.tokens.push_back(end);
  pair.taught.resize(pair.tokens.size(), 0);
  tokenizer.encode(*example.completion, pair.tokens);
  pair.tokens.push_back(end);
  pair.taught.resize(pair.tokens.size(), 1);
  return pair;
}

} // namespace pentatron::data
