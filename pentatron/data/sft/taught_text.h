/// One example to fine-tune on: tokens, and which of them are learned.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "pentatron/data/sft/chat_text.h"
#include "pentatron/data/tokenizer.h"

namespace pentatron::data {

struct TaughtText {
  std::vector<int32_t> tokens;
  std::vector<uint8_t> taught; ///< of each token: 1 if the model learns to write it
  bool without_tools = false;  ///< the template leaves out its tools or tool calls
  bool without_weight = false; ///< it has answers, but all of them have "weight": 0
};

/// Texts are tokenized as a whole. A token is taught if any of its bytes lies in a span, as in
/// transformers. If the tokenizer does not say which bytes a token stands for, the text is cut at
/// the spans and tokenized in pieces.
TaughtText teach_spans(std::string_view text, const std::vector<TextSpan>& spans,
                       const Tokenizer& tokenizer);

/// Tokens of a text behind those that the tokenizer puts before every text, such as <s>, unless the
/// text begins with them itself. What it puts behind a text is left out.
std::vector<int32_t> encode_begun(std::string_view text, const Tokenizer& tokenizer);

/// What a JSON object means, by the first of these members:
///   messages                 [{"role", "content", ...}, ...], as in OpenAI's API; with "weight": 0
///                            an answer is not learned
///   conversations            ShareGPT: [{"from", "value"}, ...], roles human, gpt, system; of
///                            LLaMA-Factory function_call (JSON of calls) and observation
///   prompt and completion    both text: the completion and the end of the document are learned;
///                            both lists of messages (TRL): the answers of the completion
///   instruction and output   Alpaca, with `input` or not; `history`: [[question, answer], ...]
///   text                     all of it is learned
/// Conversations may have tools (a list of objects, or its text) and a system prompt in `system`.
/// They begin and end as the template writes them; other texts begin as encode_begun() says and end
/// with the tokenizer's eod().
/// `render` may be empty: ChatML, and for Alpaca its own prompt instead of a conversation.
/// Throws DataError for an object that has none of these members, or system, history or tools where
/// there is no place for them, or pictures, sounds or an answer to avoid; beside a text they are
/// any other members.
TaughtText teach_record(std::string_view record, const RenderChat& render,
                        const Tokenizer& tokenizer, const std::string& text_key = "text");

/// Returns the tokens of the object up to its last answer (which may be missing), as a prompt. A
/// conversation ends with the beginning of an answer.
std::vector<int32_t> prompt_of_record(std::string_view record, const RenderChat& render,
                                      const Tokenizer& tokenizer,
                                      const std::string& text_key = "text");

/// The object for a model with an encoder, which reads the prompt; the decoder learns the answer.
/// Of prompt and completion, or instruction and output: the tokens of the prompt, none of them
/// taught, and those of the answer, all of them; `end` behind each. Throws DataError for other
/// objects.
TaughtText teach_pair(std::string_view record, const Tokenizer& tokenizer, int32_t end);

/// All members that an object of these may have.
std::vector<std::string> taught_members(const std::string& text_key);

/// The names of the members, for messages.
inline constexpr const char* kTaughtMembers =
    "messages, conversations, prompt and completion, instruction and output, or text";
/// For a model with an encoder.
inline constexpr const char* kPairMembers =
    "prompt and completion as text, or instruction and output";

} // namespace pentatron::data
