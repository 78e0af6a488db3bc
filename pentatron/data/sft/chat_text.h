/// Conversations as the text that a chat template makes of them, and where the answers lie in it.
#pragma once

#include <cstddef>
#include <ctime>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "pentatron/base/json.h"
#include "pentatron/data/sft/text_span.h"
#include "pentatron/data/tokenizer/chat_template.h"

namespace pentatron::data {

/// JSON whose members keep their order, which templates show.
struct ChatText {
  std::string text;
  std::vector<TextSpan> answers; ///< of the role "assistant", in order
};

/// What follows the last message.
enum class ChatEnd : uint8_t { kNothing, kAnswer };

/// messages: [{"role", "content", ...}, ...]; tools: null or a list. With ChatEnd::kAnswer the text
/// ends with the beginning of an answer, and its answers are not located.
using RenderChat =
    std::function<ChatText(const OrderedJson& messages, const OrderedJson& tools, ChatEnd end)>;

/// "<|im_start|>user\nHello<|im_end|>\n" for each message; an answer ends with its <|im_end|> and
/// line end. Throws DataError for messages without role and content.
ChatText render_chatml(const OrderedJson& messages, const OrderedJson& tools, ChatEnd end);
/// render_chatml() as a chat template, for programs that continue a conversation.
inline constexpr const char* kChatmlTemplate =
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] "
    "+ "
    "'<|im_end|>' + '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ "
    "'<|im_start|>assistant\\n' }}{% endif %}";
/// End of a message in ChatML.
inline constexpr const char* kChatmlEnd = "<|im_end|>";

/// By a template with the variables `names`, such as bos_token. Answers are what stands between its
/// marks {% generation %} and {% endgeneration %}, or without marks where locate_answers() finds
/// them. Throws DataError if the template fails or an answer cannot be located.
RenderChat render_by(std::shared_ptr<const tokenizer::ChatTemplate> program, OrderedJson names,
                     std::optional<std::tm> date = std::nullopt);

/// Returns the chat template of the tokenizer's file or folder, with its bos and eos tokens; empty
/// if it has no template. Throws DataError for a damaged or unsupported template. `date`
/// (dataset.chat_date) is what strftime_now sees.
RenderChat open_chat_template(const std::filesystem::path& tokenizer, const std::string& date = {});

} // namespace pentatron::data
