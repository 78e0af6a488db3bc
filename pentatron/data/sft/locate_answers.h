/// Where the answers of a conversation lie in the text that a chat template makes of it.
///
/// A template says so only by marks. Without them, an answer is what its message adds to the text
/// behind the beginning of an answer (add_generation_prompt), whose white space may differ there.
/// A beginning that the template writes behind every conversation is taken off first, if it is
/// clear where it begins. Templates that write earlier messages differently once others follow
/// (thoughts that are left out, ends that only the last message has) need more: a mark of our own
/// in the message shows where its content ends, the beginning of an answer is looked for before it,
/// and the end of the message is compared with that in shorter conversations, and if need be with
/// that of the same message without tool calls. An answer found like this must contain every text
/// of its message.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "pentatron/data/sft/text_span.h"

namespace pentatron::data {

/// The text of some messages, with the beginning of an answer or without; none if the template
/// refuses them.
using RenderSome =
    std::function<std::optional<std::string>(const nlohmann::ordered_json& messages, bool prompt)>;

/// The spans of all messages of the role "assistant" in `whole`, the text of `messages`. Throws
/// DataError for an answer that cannot be located.
std::vector<TextSpan> locate_answers(const nlohmann::ordered_json& messages,
                                     const std::string& whole, const RenderSome& render);

} // namespace pentatron::data
