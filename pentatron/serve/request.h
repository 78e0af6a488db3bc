/// The body of POST /v1/completions and /v1/chat/completions, checked.
///
/// Fields that have no effect on an answer are accepted; fields that would change it and are not
/// supported are refused by name, and so are unknown ones.
/// Source: OpenAI's API reference; top_k, min_p, repetition_penalty, ignore_eos and
/// chat_template_kwargs as vLLM and llama.cpp have them.
#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <nlohmann/json.hpp>

#include "pentatron/generate/sampling.h"

namespace pentatron::serve {

/// An answer that is an error, in OpenAI's form.
class ApiError : public std::runtime_error {
 public:
  ApiError(int status, const std::string& message, std::string param = {}, std::string code = {})
      : std::runtime_error(message), status_(status), param_(std::move(param)),
        code_(std::move(code)) {}
  int status() const { return status_; }
  const std::string& param() const { return param_; }
  const std::string& code() const { return code_; }

 private:
  int status_;
  std::string param_, code_;
};

enum class Endpoint : uint8_t { kCompletions, kChat };

struct RequestLimits {
  int64_t max_texts = 128;    ///< prompts times n
  int64_t max_choices = 16;   ///< n and best_of
  int64_t max_new_tokens = 0; ///< of a text; 0: the model's context
  int64_t max_logprobs = 20;
  int64_t max_stops = 16;
  int64_t vocab_size = 0; ///< token ids of prompts are below it
};

using PromptInput = std::variant<std::string, std::vector<int64_t>>;

struct CompletionRequest {
  Endpoint endpoint = Endpoint::kCompletions;
  std::string model;                ///< empty: none is named
  std::vector<PromptInput> prompts; ///< of completions, at least one
  /// Of chats: variables of the template, "messages" and perhaps "tools" and others.
  nlohmann::ordered_json variables;
  bool add_generation_prompt = true; ///< of chats: the prompt ends with the beginning of an answer
  bool continue_final_message = false; ///< of chats: it ends with the content of the last message
  std::optional<int64_t> max_tokens;
  generate::Sampling sampling;
  std::optional<uint64_t> seed;
  std::vector<std::string> stops;
  int64_t n = 1, best_of = 1; ///< best_of texts are written, of which the n likeliest are given
  bool stream = false, include_usage = false, echo = false, ignore_eos = false;
  std::optional<int64_t> logprobs; ///< with scores, and so many of the likeliest tokens
};

/// Throws ApiError with status 400.
CompletionRequest parse_request(std::string_view body, Endpoint endpoint,
                                const RequestLimits& limits);

} // namespace pentatron::serve
