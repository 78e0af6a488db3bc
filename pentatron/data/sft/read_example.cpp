#include "pentatron/data/sft/read_example.h"

#include <algorithm>

#include "pentatron/base/error.h"
#include "pentatron/base/json.h"
#include "pentatron/base/text.h"
#include "pentatron/data/json_line.h"
#include "pentatron/data/sft/taught_text.h"
#include "pentatron/data/tokenizer/chat_messages.h"

namespace pentatron::data {

namespace {

using OptionalText = std::optional<std::string>;

constexpr const char* kAsMessages = "messages with all turns"; ///< a remedy

bool has_text(const OrderedJson& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string();
}

/// The members of an object.
class Members {
 public:
  explicit Members(const OrderedJson& json) : json_(json) {}
  /// Null if it is missing.
  OrderedJson value(const char* name) const {
    const auto found = json_.find(name);
    return found == json_.end() ? OrderedJson() : *found;
  }
  OptionalText text(const char* name) const {
    return has_text(json_, name) ? OptionalText(json_[name].get<std::string>()) : std::nullopt;
  }
  bool has(const char* name) const { return !value(name).is_null(); }
  /// The tools of a conversation, which many files have as text; null if there are none.
  OrderedJson tools() const;
  /// Empty: there is none.
  std::string system_prompt() const;
  /// Earlier questions and answers as messages.
  OrderedJson history() const;
  /// Refuses members that a form has no place for.
  void refuse(std::initializer_list<const char*> names, const char* form,
              const char* remedy) const {
    for (const char* name : names)
      if (const OrderedJson member = value(name);
          !member.is_null() && member != "" && member != "[]" && member != OrderedJson::array())
        raise<DataError>("it has {}, for which {} has no place\n  try: {}", name, form, remedy);
  }

 private:
  const OrderedJson& json_;
};

OrderedJson Members::tools() const {
  OrderedJson tools = value("tools");
  if (tools.is_string()) {
    const std::string text = tools;
    if (trim(text).empty()) return {};
    tools = parse_ordered_json(text, "tools");
  }
  if (tools.is_null() || tools == OrderedJson::array()) return {};
  if (!tools.is_array() ||
      !std::ranges::all_of(tools, [](const OrderedJson& tool) { return tool.is_object(); }))
    throw DataError("its tools are not a list of objects");
  return tools;
}

std::string Members::system_prompt() const {
  const OrderedJson system = value("system");
  if (!system.is_null() && !system.is_string()) throw DataError("its system is not text");
  return system.is_null() ? std::string() : system.get<std::string>();
}

OrderedJson Members::history() const {
  const OrderedJson history = value("history");
  OrderedJson messages = OrderedJson::array();
  if (history.is_null()) return messages;
  const auto is_text = [](const OrderedJson& one) { return one.is_string(); };
  const auto is_turn = [&](const OrderedJson& turn) {
    return turn.is_array() && turn.size() == 2 && std::ranges::all_of(turn, is_text);
  };
  if (!history.is_array() || !std::ranges::all_of(history, is_turn))
    throw DataError("its history is not a list of [question, answer]");
  for (const OrderedJson& turn : history) {
    messages.push_back({{"role", "user"}, {"content", turn[0]}});
    messages.push_back({{"role", "assistant"}, {"content", turn[1]}});
  }
  return messages;
}

/// The message of a turn from function_call (LLaMA-Factory), whose value is the JSON text of one
/// call or of several: {"name", "arguments"}.
OrderedJson message_of_calls(const std::string& value) {
  constexpr const char* kForm =
      "a turn from function_call is not the JSON of calls, {\"name\": ..., \"arguments\": {...}}";
  OrderedJson given;
  try {
    given = parse_ordered_json(value, "function_call");
  } catch (const DataError&) {
    raise<DataError>("{}: {}", kForm, excerpt(value, 60));
  }
  if (!given.is_array()) given = OrderedJson::array({std::move(given)});
  OrderedJson calls = OrderedJson::array();
  for (OrderedJson& call : given) {
    if (!call.is_object() || !has_text(call, "name") || !call.contains("arguments"))
      raise<DataError>("{}: {}", kForm, excerpt(value, 60));
    calls.push_back({{"type", "function"},
                     {"function", {{"name", call["name"]}, {"arguments", call["arguments"]}}}});
  }
  if (calls.empty()) raise<DataError>("{}: {}", kForm, excerpt(value, 60));
  return {{"role", "assistant"}, {"tool_calls", std::move(calls)}};
}

/// Roles and contents of ShareGPT's turns.
OrderedJson messages_of_turns(const OrderedJson& turns) {
  if (!turns.is_array()) throw DataError("conversations is not a list");
  OrderedJson messages = OrderedJson::array();
  for (const OrderedJson& turn : turns) {
    if (turn.is_object() && has_text(turn, "role")) { // OpenAI's form under this name
      messages.push_back(turn);
      continue;
    }
    if (!turn.is_object() || !has_text(turn, "from") || !has_text(turn, "value"))
      throw DataError("a turn of conversations has no from and value");
    std::string role = turn["from"];
    if (role == "human") role = "user";
    if (role == "gpt") role = "assistant";
    if (role == "observation") role = "tool";
    if (role == "function_call") {
      messages.push_back(message_of_calls(turn["value"]));
    } else if (role == "user" || role == "assistant" || role == "system" || role == "tool") {
      messages.push_back({{"role", role}, {"content", turn["value"]}});
    } else {
      raise<DataError>("a turn of conversations is from {}, not from human, gpt, system, tool, "
                       "function_call or observation",
                       role);
    }
    if (turn.contains("weight")) messages.back()["weight"] = turn["weight"];
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

/// Takes OpenAI's weight out of a message; returns whether its answer is not to be learned.
bool take_weight(OrderedJson& message) {
  const auto found = message.find("weight");
  if (found == message.end()) return false;
  const OrderedJson weight = *found;
  message.erase("weight");
  if (weight.is_null()) return false;
  if (!weight.is_number() || (weight != 0 && weight != 1))
    raise<DataError>("a message has weight={}, which is neither 0 (not learned) nor 1",
                     excerpt(weight.dump(), 40));
  const std::string role = message["role"];
  if (weight == 1 && role != "assistant")
    raise<DataError>("a message of the role {} has weight=1, but only those of the role assistant "
                     "are learned",
                     role);
  return weight == 0 && role == "assistant";
}

/// Checks messages and adds them to a conversation.
void add_messages(OrderedJson messages, Example& example) {
  if (!messages.is_array() || messages.empty())
    raise<DataError>("its messages are {}", messages.is_array() ? "empty" : "not a list");
  for (OrderedJson& message : messages) {
    if (!message.is_object() || !has_text(message, "role"))
      throw DataError("a message has no role");
    tokenizer::take_message(message, fmt::format("messages[{}]", example.messages.size()));
    const bool skipped = take_weight(message);
    example.skipped.push_back(skipped ? 1 : 0);
    example.messages.push_back(std::move(message));
  }
}

Example conversation(const Members& members) {
  Example example;
  example.messages = OrderedJson::array();
  example.tools = members.tools();
  return example;
}

/// Puts the system prompt that stands beside a conversation at its beginning.
Example with_system(Example example, const std::string& system) {
  if (system.empty()) return example;
  const OrderedJson& first = example.messages.front();
  if (first["role"] == "system") {
    if (first.value("content", OrderedJson()) == system) return example;
    throw DataError("it has a system prompt in its messages and another one in system\n  try: one "
                    "of them");
  }
  example.messages.insert(example.messages.begin(),
                          OrderedJson{{"role", "system"}, {"content", system}});
  example.skipped.insert(example.skipped.begin(),
                         example.asked > 0 ? example.skipped.front() : uint8_t{0});
  if (example.asked > 0) ++example.asked;
  return example;
}

/// Refuses pictures and sounds that belong to an example.
void refuse_media(const Members& members, std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (const OrderedJson member = members.value(name); !member.empty() && member != "")
      raise<DataError>("it has {}, but the model only reads text\n  try: examples without {}", name,
                       name);
}

/// Refuses what an example has beside its text and the model cannot learn.
void refuse_unread(const Members& members) {
  for (const char* name : {"label", "kto_tag"})
    if (members.value(name) == false)
      raise<DataError>("its {} is false, which marks an answer to avoid (KTO), and only answers to "
                       "give can be learned\n  try: examples without such answers",
                       name);
  refuse_media(members, {"images", "videos", "audios"});
}

/// Alpaca's object as a conversation, or with its own prompt.
Example example_of_instruction(const Members& members, const std::string& instruction,
                               const OptionalText& output, bool as_chat) {
  refuse_unread(members);
  if (const OrderedJson given = members.value("input"); !given.is_null() && !given.is_string())
    throw DataError("its input is not text");
  const std::string input = members.text("input").value_or("");
  Example example;
  if (!as_chat) {
    members.refuse({"system", "history", "tools"}, "Alpaca's prompt",
                   "its text within instruction, or (without an encoder) a tokenizer with a chat "
                   "template");
    example.prompt = alpaca_prompt(instruction, input);
    example.completion = output;
    return example;
  }
  OrderedJson messages = members.history();
  const char* const between = instruction.empty() || input.empty() ? "" : "\n\n";
  messages.push_back({{"role", "user"}, {"content", instruction + between + input}});
  if (output) messages.push_back({{"role", "assistant"}, {"content", *output}});
  example = conversation(members);
  add_messages(messages, example);
  return with_system(std::move(example), members.system_prompt());
}

/// TRL's object: a conversation whose end is the completion.
Example example_of_parts(const Members& members) {
  members.refuse({"history"}, "a conversation", kAsMessages);
  refuse_unread(members);
  const OrderedJson prompt = members.value("prompt"), completion = members.value("completion");
  if (!prompt.is_array() || !(completion.is_array() || completion.is_null()))
    throw DataError("of prompt and completion one is a list of messages and the other is not");
  Example example = conversation(members);
  add_messages(prompt, example);
  example.asked = prompt.size();
  if (std::ranges::any_of(prompt, [](const OrderedJson& m) { return m["role"] == "assistant"; }))
    std::ranges::fill(example.skipped, 1);
  if (!completion.is_null()) add_messages(completion, example);
  return with_system(std::move(example), members.system_prompt());
}

Example example_of_messages(const Members& members) {
  members.refuse({"history"}, "a conversation", kAsMessages);
  refuse_unread(members);
  refuse_media(members, {"image", "video", "audio"});
  Example example = conversation(members);
  add_messages(members.has("messages") ? members.value("messages")
                                       : messages_of_turns(members.value("conversations")),
               example);
  return with_system(std::move(example), members.system_prompt());
}

Example example_of_text(const Members& members, const std::string& prompt,
                        const OptionalText& completion) {
  refuse_unread(members);
  members.refuse({"system", "history", "tools"}, "a prompt as text",
                 "its text within prompt, or (without an encoder) prompt and completion as lists "
                 "of messages");
  Example example;
  example.prompt = prompt;
  example.completion = completion;
  return example;
}

/// The object of a record, with remedies for what is none.
OrderedJson object_of(std::string_view record) {
  constexpr const char* kForm =
      "each example as one JSON object on one line, or all examples in one JSON array";
  OrderedJson json;
  try {
    json = parse_ordered_json(record, "the example");
  } catch (const DataError& error) {
    if (std::string_view(error.what()).find("not valid JSON") == std::string_view::npos) throw;
    raise<DataError>("{}\n  try: {}", error.what(), kForm);
  }
  if (!json.is_object()) raise<DataError>("it is not an object\n  try: {}", kForm);
  return json;
}

} // namespace

Example read_example(std::string_view record, bool templated, const std::string& text_key,
                     Answer answer) {
  const OrderedJson json = object_of(record);
  const Members members(json);
  const bool optional = answer == Answer::kOptional;
  if (members.has("messages") || members.has("conversations")) return example_of_messages(members);
  const OrderedJson asked = members.value("prompt"), answered = members.value("completion");
  if ((asked.is_array() || answered.is_array()) && !asked.is_null() &&
      (!answered.is_null() || optional))
    return example_of_parts(members);
  const auto prompt = members.text("prompt"), completion = members.text("completion");
  if (prompt && (completion || optional)) return example_of_text(members, *prompt, completion);
  const auto instruction = members.text("instruction"), output = members.text("output");
  if (instruction && (output || optional))
    return example_of_instruction(members, *instruction, output, templated);
  Example example;
  example.completion = members.text(text_key.c_str());
  if (!example.completion) {
    ObjectKeys keys;
    for (const auto& [name, value] : json.items()) keys.all.push_back(name);
    const char* const forms = answer == Answer::kOfPrompt ? kPairMembers : kTaughtMembers;
    raise<DataError>("it has none of {}; {}\n  try: objects with {}", forms, keys_text(keys),
                     forms);
  }
  return example;
}

} // namespace pentatron::data
