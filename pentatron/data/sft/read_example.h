/// What the JSON object of an example says: a conversation, or a prompt and what follows it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace pentatron::data {

struct Example {
  nlohmann::ordered_json messages; ///< null: no conversation
  nlohmann::ordered_json tools;    ///< null or a list of objects
  size_t asked = 0;                ///< so many messages are the prompt
  std::vector<uint8_t> skipped;    ///< of each message: 1 if an answer in it is not learned
  std::string prompt;
  std::optional<std::string> completion; ///< none: the object has none
};

enum class Answer : uint8_t {
  kNeeded,
  kOptional,
  kOfPrompt, ///< needed, and so is a prompt as text
};

/// Reads the members that taught_text.h lists. Messages are as tokenizer::take_message() makes
/// them. `templated`: there is a chat template, which Alpaca's members are written by. Throws
/// DataError.
Example read_example(std::string_view record, bool templated, const std::string& text_key,
                     Answer answer);

} // namespace pentatron::data
