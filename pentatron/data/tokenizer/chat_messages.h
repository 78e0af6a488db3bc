/// Messages in the form of OpenAI's API as chat templates take them. Serving and training both go
/// this way, so that a model learns the text that it is served with.
#pragma once

#include <ctime>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "pentatron/data/tokenizer/chat_template.h"

namespace pentatron::data::tokenizer {

/// Makes a message, an object with a role, what templates know: the role developer is system, and
/// function is tool; a `function_call` is the only one of `tool_calls`; a `refusal` is the content
/// if there is none; parts of type text in `content` are one text; a `content` of null is empty,
/// but beside tool calls stays null, also if there was none. Throws DataError, which begins with
/// `where`, for other content.
void take_message(nlohmann::ordered_json& message, std::string_view where);

/// Makes answers that call tools answers without calls, and returns whether there were any.
bool remove_tool_calls(nlohmann::ordered_json& messages);

/// The text of variables["messages"] by `form` (see ChatTemplate::render()). Where `arguments` of
/// tool calls are a JSON object within a string, the template gets the object, which most need; one
/// that fails with objects gets the strings, and one that fails with a content of null an empty
/// one. variables["messages"] becomes what it got.
std::string render_messages(const ChatTemplate& form, nlohmann::ordered_json& variables,
                            std::vector<std::pair<size_t, size_t>>* marks = nullptr,
                            const std::tm* now = nullptr);

} // namespace pentatron::data::tokenizer
