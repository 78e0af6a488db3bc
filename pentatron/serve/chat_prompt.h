/// The prompt of a chat: its messages as the model's chat template writes them.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "pentatron/data/tokenizer/chat_template.h"
#include "pentatron/serve/request.h"

namespace pentatron::serve {

/// What transformers' apply_chat_template returns for the request's variables, its
/// add_generation_prompt and continue_final_message. `tokens` has bos_token and eos_token.
/// Throws ApiError with status 400 if the template fails, if the text does not depend on the tools
/// or tool calls of the request, or if it does not contain the message to continue.
/// Source: transformers 5.23, utils/chat_template_utils.py, render_jinja_template.
std::string chat_text(const CompletionRequest& request, const data::tokenizer::ChatTemplate& form,
                      const nlohmann::ordered_json& tokens);

} // namespace pentatron::serve
