#include "pentatron/serve/request.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "pentatron/base/json.h"
#include "pentatron/base/text.h"
#include "pentatron/data/tokenizer/chat_messages.h"

namespace pentatron::serve {

namespace {

[[noreturn]] void refuse_field(std::string_view field, const std::string& sentence) {
  throw ApiError(400, fmt::format("{} {}", field, sentence), std::string(field));
}

std::string shown(const Json& value) {
  return excerpt(dump_json(value), 40);
}

/// Takes fields one after another; what is left in the end was not known.
class Fields {
 public:
  explicit Fields(const Json& object) : object_(object) {
    for (const auto& [name, value] : object.items()) left_.insert(name);
  }
  /// Null if the field is missing or null.
  const Json* take(const std::string& name) {
    left_.erase(name);
    const auto found = object_.find(name);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  std::optional<int64_t> integer(const std::string& name, int64_t least, int64_t most) {
    const Json* const value = take(name);
    if (value == nullptr) return std::nullopt;
    const bool fits = value->is_number_integer() &&
                      (!value->is_number_unsigned() ||
                       value->get<uint64_t>() <= uint64_t{std::numeric_limits<int64_t>::max()});
    const int64_t number = fits ? value->get<int64_t>() : 0;
    if (!fits || number < least || number > most)
      refuse_field(name, fmt::format("must be an integer from {} to {}, not {}", least, most,
                                     shown(*value)));
    return number;
  }
  std::optional<double> number(const std::string& name, double least, double most) {
    const Json* const value = take(name);
    if (value == nullptr) return std::nullopt;
    const double number = value->is_number() ? value->get<double>() : std::nan("");
    if (!(number >= least && number <= most))
      refuse_field(
          name, fmt::format("must be a number from {} to {}, not {}", least, most, shown(*value)));
    return number;
  }
  std::optional<bool> boolean(const std::string& name) {
    const Json* const value = take(name);
    if (value == nullptr) return std::nullopt;
    if (!value->is_boolean())
      refuse_field(name, fmt::format("must be true or false, not {}", shown(*value)));
    return value->get<bool>();
  }
  /// Refuses a field whose value is none of those that have no effect.
  void without_effect(const std::string& name, const std::vector<Json>& harmless) {
    const Json* const value = take(name);
    if (value == nullptr || std::ranges::find(harmless, *value) != harmless.end()) return;
    refuse_field(name,
                 fmt::format("is not supported, and {} would change the answer", shown(*value)));
  }
  void none_left() const {
    if (!left_.empty()) refuse_field(*left_.begin(), "is not a field of this request");
  }

 private:
  const Json& object_;
  std::set<std::string> left_;
};

std::vector<int64_t> token_ids(const Json& list, const RequestLimits& limits) {
  std::vector<int64_t> ids;
  ids.reserve(list.size());
  for (const Json& id : list) {
    const bool fits =
        id.is_number_unsigned() && id.get<uint64_t>() < static_cast<uint64_t>(limits.vocab_size);
    if (!fits)
      refuse_field("prompt", fmt::format("has {}, but token ids are integers from 0 to {}",
                                         shown(id), limits.vocab_size - 1));
    ids.push_back(id.get<int64_t>());
  }
  if (ids.empty()) refuse_field("prompt", "has a list without tokens");
  return ids;
}

/// A string, a list of strings, token ids, or a list of lists of them.
std::vector<PromptInput> prompts_of(const Json* value, const RequestLimits& limits) {
  if (value == nullptr)
    refuse_field("prompt", "is missing; an empty string lets the model begin a new text");
  if (value->is_string()) return {value->get<std::string>()};
  if (!value->is_array() || value->empty())
    refuse_field("prompt", "must be a string, a list of strings, a list of token ids, or a list of "
                           "such lists");
  if (value->front().is_number()) return {token_ids(*value, limits)};
  if (std::ssize(*value) > limits.max_texts)
    refuse_field("prompt", fmt::format("has {} prompts, but a request may have at most {}",
                                       value->size(), limits.max_texts));
  std::vector<PromptInput> prompts;
  for (const Json& one : *value) {
    if (one.is_string()) {
      prompts.emplace_back(one.get<std::string>());
    } else if (one.is_array()) {
      prompts.emplace_back(token_ids(one, limits));
    } else {
      refuse_field("prompt", fmt::format("has the element {}, which is neither text nor a list of "
                                         "token ids",
                                         shown(one)));
    }
  }
  return prompts;
}

std::vector<std::string> stops_of(const Json* value, const RequestLimits& limits) {
  if (value == nullptr) return {};
  std::vector<std::string> stops;
  if (value->is_string()) {
    stops.push_back(value->get<std::string>());
  } else if (value->is_array()) {
    if (std::ssize(*value) > limits.max_stops)
      refuse_field("stop", fmt::format("has {} strings, but a request may have at most {}",
                                       value->size(), limits.max_stops));
    for (const Json& one : *value) {
      if (!one.is_string()) refuse_field("stop", "must be a string or a list of strings");
      stops.push_back(one.get<std::string>());
    }
  } else {
    refuse_field("stop", "must be a string or a list of strings");
  }
  constexpr size_t kMost = 1024;
  for (const std::string& stop : stops)
    if (stop.size() > kMost)
      refuse_field("stop", fmt::format("has a string of more than {} bytes", kMost));
  return stops;
}

OrderedJson messages_of(OrderedJson messages) {
  if (!messages.is_array() || messages.empty())
    refuse_field("messages", "must be a list of at least one message");
  for (size_t i = 0; i < messages.size(); ++i) {
    OrderedJson& message = messages[i];
    if (!message.is_object() || !message.contains("role") || !message["role"].is_string())
      refuse_field(fmt::format("messages[{}]", i), "must be an object with a role");
    static const std::set<std::string> kRoles = {"system",    "developer", "user",
                                                 "assistant", "tool",      "function"};
    const std::string role = message["role"];
    if (!kRoles.contains(role))
      refuse_field(
          fmt::format("messages[{}].role", i),
          fmt::format("must be system, developer, user, assistant or tool, not {}", shown(role)));
    constexpr const char* kContents[] = {"content", "tool_calls", "function_call", "refusal"};
    if (std::ranges::none_of(kContents, [&](const char* name) { return message.contains(name); }))
      refuse_field(fmt::format("messages[{}].content", i), "is missing");
    const std::string where = fmt::format("messages[{}]", i);
    try {
      data::tokenizer::take_message(message, where);
    } catch (const DataError& error) {
      throw ApiError(400, error.what(), where + ".content");
    }
  }
  return messages;
}

/// Refuses variables of the chat template that the server or fields of the request set.
void refuse_set_variables(const OrderedJson& variables) {
  for (const char* name : {"messages", "tools", "add_generation_prompt", "continue_final_message"})
    if (variables.contains(name))
      refuse_field("chat_template_kwargs",
                   fmt::format("cannot contain {}; send it as a field of the request", name));
  for (const char* name : {"bos_token", "eos_token", "chat_template", "tokenize"})
    if (variables.contains(name))
      refuse_field("chat_template_kwargs",
                   fmt::format("cannot contain {}, which the server sets", name));
}

/// Whether the prompt ends with the beginning of an answer, or within the last message.
void take_end_of_prompt(Fields& fields, CompletionRequest& request) {
  const std::optional<bool> begins = fields.boolean("add_generation_prompt");
  request.continue_final_message = fields.boolean("continue_final_message").value_or(false);
  request.add_generation_prompt = begins.value_or(!request.continue_final_message);
  if (!request.continue_final_message) return;
  if (request.add_generation_prompt)
    refuse_field("continue_final_message", "and add_generation_prompt cannot both be true");
  const OrderedJson& last = request.variables["messages"].back();
  if (last["role"] != "assistant" || !last["content"].is_string() ||
      last.value("tool_calls", OrderedJson()).size() > 0)
    refuse_field("continue_final_message",
                 "needs a last message of the role assistant, with content and without tool_calls");
}

void take_chat(Fields& fields, const OrderedJson& body, CompletionRequest& request) {
  fields.take("messages");
  request.variables = OrderedJson::object();
  if (const Json* const more = fields.take("chat_template_kwargs")) {
    if (!more->is_object()) refuse_field("chat_template_kwargs", "must be an object");
    request.variables = body["chat_template_kwargs"];
    refuse_set_variables(request.variables);
  }
  request.variables["messages"] =
      messages_of(body.contains("messages") ? body["messages"] : OrderedJson());
  take_end_of_prompt(fields, request);
  const Json* const choice = fields.take("tool_choice");
  const bool no_tools = choice != nullptr && *choice == "none";
  if (choice != nullptr && *choice != "auto" && !no_tools)
    refuse_field("tool_choice", "must be auto or none: tool calls cannot be forced");
  if (const Json* const tools = fields.take("tools")) {
    if (!tools->is_array()) refuse_field("tools", "must be a list");
    for (const Json& tool : *tools)
      if (!tool.is_object() || tool.value("type", Json()) != "function")
        refuse_field("tools", "must be a list of objects of type function");
    if (!tools->empty() && !no_tools) request.variables["tools"] = body["tools"];
  }
  const std::optional<bool> logprobs = fields.boolean("logprobs");
  const std::optional<int64_t> top = fields.integer("top_logprobs", 0, 20);
  if (top.value_or(0) > 0 && !logprobs.value_or(false))
    refuse_field("top_logprobs", "needs logprobs to be true");
  if (logprobs.value_or(false)) request.logprobs = top.value_or(0);
  fields.without_effect("response_format", {Json{{"type", "text"}}});
  fields.without_effect("modalities", {Json::array({"text"})});
  fields.without_effect("parallel_tool_calls", {true, false}); // they are not parsed
  fields.without_effect("verbosity", {"medium"});
  for (const char* name : {"functions", "function_call", "audio", "prediction", "reasoning_effort",
                           "web_search_options"})
    fields.without_effect(name, {});
}

void take_completion(Fields& fields, CompletionRequest& request, const RequestLimits& limits) {
  request.prompts = prompts_of(fields.take("prompt"), limits);
  request.echo = fields.boolean("echo").value_or(false);
  // Some clients send the booleans of chats.
  const Json* const logprobs = fields.take("logprobs");
  if (logprobs != nullptr && logprobs->is_boolean()) {
    if (logprobs->get<bool>()) request.logprobs = 0;
  } else if (logprobs != nullptr) {
    request.logprobs = fields.integer("logprobs", 0, limits.max_logprobs);
  }
  fields.without_effect("suffix", {""});
}

void take_sampling(Fields& fields, CompletionRequest& request) {
  generate::Sampling& sampling = request.sampling;
  sampling = {.temperature = fields.number("temperature", 0, 100).value_or(1),
              .top_k = fields.integer("top_k", -1, int64_t{1} << 40).value_or(0),
              .top_p = fields.number("top_p", 0, 1).value_or(1),
              .min_p = fields.number("min_p", 0, 1).value_or(0),
              .repetition_penalty = fields.number("repetition_penalty", 1e-6, 1e6).value_or(1)};
  sampling.top_k = std::max<int64_t>(0, sampling.top_k);
  sampling.top_p = std::max(sampling.top_p, 1e-12); // 0: the likeliest token alone
  if (const auto seed = fields.integer("seed", std::numeric_limits<int64_t>::min(),
                                       std::numeric_limits<int64_t>::max()))
    request.seed = static_cast<uint64_t>(*seed);
  fields.without_effect("presence_penalty", {0});
  fields.without_effect("frequency_penalty", {0});
  fields.without_effect("logit_bias", {Json::object()});
}

void take_max_tokens(Fields& fields, CompletionRequest& request, const RequestLimits& limits) {
  const bool chat = request.endpoint == Endpoint::kChat;
  const int64_t least = chat ? 1 : 0,
                most = limits.max_new_tokens > 0 ? limits.max_new_tokens : int64_t{1} << 40;
  request.max_tokens = fields.integer("max_tokens", least, most);
  if (const auto newer = fields.integer("max_completion_tokens", least, most)) {
    if (request.max_tokens && request.max_tokens != newer)
      refuse_field("max_completion_tokens", "and max_tokens are different; send one of them");
    request.max_tokens = newer;
  }
  constexpr int64_t kOfCompletions = 16; // OpenAI's default
  if (!request.max_tokens && !chat) request.max_tokens = std::min(kOfCompletions, most);
}

void take_choices(Fields& fields, CompletionRequest& request, const RequestLimits& limits) {
  request.n = fields.integer("n", 1, limits.max_choices).value_or(1);
  request.best_of = fields.integer("best_of", 1, limits.max_choices).value_or(request.n);
  if (request.best_of < request.n)
    refuse_field("best_of", fmt::format("must be at least n={}", request.n));
  if (request.best_of > request.n && request.stream)
    refuse_field("best_of", "larger than n cannot be streamed");
  const int64_t prompts = std::max<int64_t>(1, std::ssize(request.prompts));
  if (prompts * request.best_of > limits.max_texts)
    refuse_field(request.best_of > request.n ? "best_of" : "n",
                 fmt::format("times {} prompts is {} texts, but a request may have at most {}",
                             prompts, prompts * request.best_of, limits.max_texts));
}

void take_stream(Fields& fields, CompletionRequest& request) {
  request.stream = fields.boolean("stream").value_or(false);
  const Json* const options = fields.take("stream_options");
  if (options == nullptr) return;
  if (!options->is_object()) refuse_field("stream_options", "must be an object");
  if (!request.stream) refuse_field("stream_options", "needs stream to be true");
  Fields inner(*options);
  request.include_usage = inner.boolean("include_usage").value_or(false);
  inner.boolean("include_obfuscation"); // padding against observers, never sent
  inner.boolean("continuous_usage_stats").value_or(false)
      ? refuse_field("stream_options.continuous_usage_stats", "is not supported")
      : inner.none_left();
}

} // namespace

CompletionRequest parse_request(std::string_view body, Endpoint endpoint,
                                const RequestLimits& limits) {
  const JsonLimits limits_of_body{.max_bytes = body.size(), .max_depth = 64};
  Json json;
  try {
    json = parse_json(body, "the body", limits_of_body);
  } catch (const DataError& error) {
    throw ApiError(400, error.what());
  }
  if (!json.is_object()) throw ApiError(400, "the body must be a JSON object");
  CompletionRequest request{.endpoint = endpoint};
  Fields fields(json);
  if (const Json* const model = fields.take("model")) {
    if (!model->is_string()) refuse_field("model", "must be a string");
    request.model = model->get<std::string>();
  }
  take_stream(fields, request);
  if (endpoint == Endpoint::kChat)
    take_chat(fields, parse_ordered_json(body, "the body", limits_of_body),
              request); // in order, for templates
  else
    take_completion(fields, request, limits);
  take_sampling(fields, request);
  take_max_tokens(fields, request, limits);
  take_choices(fields, request, limits);
  request.stops = stops_of(fields.take("stop"), limits);
  request.ignore_eos = fields.boolean("ignore_eos").value_or(false);
  for (const char* name : {"user", "metadata", "store", "service_tier", "safety_identifier",
                           "prompt_cache_key", "prompt_cache_retention", "cache_prompt"})
    fields.take(name);
  fields.none_left();
  return request;
}

} // namespace pentatron::serve
