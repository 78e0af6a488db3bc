/// The chat template that lies with a tokenizer, for ChatDataset.
#pragma once

#include <filesystem>

#include "pentatron/data/objectives/chat_dataset.h"

namespace pentatron::data {

/// The template of the tokenizer's file or folder, run by tokenizer/chat_template.h with the
/// messages and the configured tokens of begin and end; chatml() if there is none. Throws DataError
/// for a template that is damaged or not supported.
ChatTemplate open_chat_template(const std::filesystem::path& tokenizer);

} // namespace pentatron::data
