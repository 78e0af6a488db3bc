#include "pentatron/data/sft/taught_text.h"

#include <algorithm>
#include <optional>

#include "pentatron/base/error.h"
#include "pentatron/data/json_line.h"

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
    if (turn.is_object() && find_text(turn, "role")) { // OpenAI's form under this name
      messages.push_back(turn);
      continue;
    }
    if (!turn.is_object() || !find_text(turn, "from") || !find_text(turn, "value"))
      throw DataError("a turn of conversations has no from and value");
    std::string role = turn["from"];
    if (role == "human") role = "user";
    if (role == "gpt") role = "assistant";
    if (role != "user" && role != "assistant" && role != "system" && role != "tool")
      raise<DataError>("a turn of conversations is from {}, not from human, gpt, system or tool",
                       role);
    messages.push_back({{"role", role}, {"content", turn["value"]}});
  }
  return messages;
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

/// An example as its object tells it: a conversation, or a prompt and what follows.
struct Example {
  OrderedJson messages; ///< null: no conversation
  OrderedJson tools;
  size_t asked = 0; ///< so many messages are the prompt, of which nothing is learned
  std::string prompt;
  std::optional<std::string> completion; ///< none: the object has none
};

void check_messages(const OrderedJson& messages) {
  if (!messages.is_array() || messages.empty())
    raise<DataError>("its messages are {}", messages.is_array() ? "empty" : "not a list");
  for (const OrderedJson& message : messages)
    if (!message.is_object() || find_text(message, "role") == nullptr)
      throw DataError("a message has no role");
}

/// Alpaca's object as a conversation, or with its own prompt.
Example example_of_instruction(const std::string& instruction, const std::string& input,
                               const std::optional<std::string>& output, bool as_chat) {
  if (!as_chat)
    return {.messages = {},
            .tools = {},
            .asked = 0,
            .prompt = alpaca_prompt(instruction, input),
            .completion = output};
  Example example;
  example.messages = OrderedJson::array();
  example.messages.push_back(
      {{"role", "user"}, {"content", input.empty() ? instruction : instruction + "\n\n" + input}});
  if (output) example.messages.push_back({{"role", "assistant"}, {"content", *output}});
  return example;
}

/// TRL's object: a conversation whose end is the completion.
Example example_of_parts(const OrderedJson& prompt, const OrderedJson& completion,
                         const OrderedJson& tools) {
  if (!prompt.is_array() || !(completion.is_array() || completion.is_null()))
    throw DataError("of prompt and completion one is a list of messages and the other is not");
  check_messages(prompt);
  Example example;
  example.messages = prompt;
  example.tools = tools;
  example.asked = prompt.size();
  if (completion.is_null()) return example;
  check_messages(completion);
  example.messages.insert(example.messages.end(), completion.begin(), completion.end());
  return example;
}

enum class Answer : uint8_t { kNeeded, kOptional };

/// `templated`: there is a chat template.
Example example_of(std::string_view record, bool templated, const std::string& text_key,
                   Answer answer) {
  parse_json(record, "the example"); // with its bounds, and an error that people can read
  const OrderedJson json = OrderedJson::parse(record);
  if (!json.is_object()) throw DataError("it is not an object");
  const auto member = [&](const char* name) {
    const auto found = json.find(name);
    return found == json.end() ? OrderedJson() : *found;
  };
  const auto text = [&](const char* name) {
    const OrderedJson* found = find_text(json, name);
    return found == nullptr ? std::optional<std::string>() : found->get<std::string>();
  };
  Example example;
  if (json.contains("messages") || json.contains("conversations")) {
    example.messages =
        json.contains("messages") ? member("messages") : messages_of_turns(member("conversations"));
    example.tools = member("tools");
    check_messages(example.messages);
    return example;
  }
  const OrderedJson asked = member("prompt"), answered = member("completion");
  if ((asked.is_array() || answered.is_array()) && !asked.is_null() &&
      (!answered.is_null() || answer == Answer::kOptional))
    return example_of_parts(asked, answered, member("tools"));
  const auto prompt = text("prompt"), completion = text("completion");
  if (prompt && (completion || answer == Answer::kOptional)) {
    example.prompt = *prompt;
    example.completion = completion;
    return example;
  }
  const auto instruction = text("instruction"), output = text("output");
  if (instruction && (output || answer == Answer::kOptional))
    return example_of_instruction(*instruction, text("input").value_or(""), output, templated);
  example.completion = text(text_key.c_str());
  if (!example.completion) {
    ObjectKeys keys;
    for (const auto& [name, value] : json.items()) keys.all.push_back(name);
    raise<DataError>("it has none of {}; {}", kTaughtMembers, keys_text(keys));
  }
  return example;
}

/// What the tokenizer puts before every text, such as <s>.
std::vector<int32_t> tokens_before(const Tokenizer& tokenizer) {
  std::vector<int32_t> plain, whole;
  tokenizer.encode("a", plain);
  tokenizer.encode_with_special("a", whole);
  const auto text = std::ranges::search(whole, plain);
  return {whole.begin(), text.begin()};
}

bool begins_with(const std::vector<int32_t>& tokens, const std::vector<int32_t>& begin) {
  return std::ranges::mismatch(tokens, begin).in2 == begin.end();
}

ChatText rendered(const Example& example, const RenderChat& render, ChatEnd end) {
  return render ? render(example.messages, example.tools, end)
                : render_chatml(example.messages, example.tools, end);
}

/// The conversation with the answers to learn.
ChatText learned(const Example& example, const RenderChat& render) {
  ChatText chat = rendered(example, render, ChatEnd::kNothing);
  const auto is_answer = [](const OrderedJson& message) { return message["role"] == "assistant"; };
  const auto begin = example.messages.begin(), end = example.messages.end(),
             middle = begin + static_cast<std::ptrdiff_t>(example.asked);
  auto given = std::count_if(begin, middle, is_answer);
  if (given == 0) return chat;
  if (given + std::count_if(middle, end, is_answer) != std::ssize(chat.answers)) {
    Example asked = example; // the template marks others, too, or not all
    asked.messages.erase(asked.messages.begin() + (middle - begin), asked.messages.end());
    given = std::min(std::ssize(rendered(asked, render, ChatEnd::kNothing).answers),
                     std::ssize(chat.answers));
  }
  chat.answers.erase(chat.answers.begin(), chat.answers.begin() + given);
  return chat;
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
  return {"messages",    "tools", "conversations", "prompt", "completion",
          "instruction", "input", "output",        text_key};
}

TaughtText teach_record(std::string_view record, const RenderChat& render,
                        const Tokenizer& tokenizer, const std::string& text_key) {
  const Example example = example_of(record, render != nullptr, text_key, Answer::kNeeded);
  if (!example.messages.is_null()) {
    const ChatText chat = learned(example, render);
    return teach_spans(chat.text, chat.answers, tokenizer);
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
  Example example = example_of(record, render != nullptr, text_key, Answer::kOptional);
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
  const Example example = example_of(record, false, "text", Answer::kNeeded);
  if (!example.messages.is_null() || example.prompt.empty() || !example.completion)
    raise<DataError>("it has no prompt and completion as text and no instruction and output, which "
                     "a model with an encoder needs");
  TaughtText pair{.tokens = encode_begun(example.prompt, tokenizer), .taught = {}};
  pair.tokens.push_back(end);
  pair.taught.resize(pair.tokens.size(), 0);
  tokenizer.encode(*example.completion, pair.tokens);
  pair.tokens.push_back(end);
  pair.taught.resize(pair.tokens.size(), 1);
  return pair;
}

} // namespace pentatron::data
