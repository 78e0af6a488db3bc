/// Which arguments the filters, tests, methods and functions of templates take.
#pragma once

#include <cstdint>
#include <string_view>

#include "pentatron/data/tokenizer/chat/text_functions.h"

namespace pentatron::data::tokenizer::chat {

enum class Callable : uint8_t { kFilter, kTest, kMethod, kFunction };

/// Whether there is one of that name. `html_json`: of TemplateRules.
bool is_callable(Callable kind, std::string_view name, bool html_json);

/// Throws DataError, which names it, for an argument that does not exist or is given twice, so that
/// none is ignored; and for a name that is not known.
void check_arguments(Callable kind, std::string_view name, const Arguments& arguments,
                     bool html_json);

} // namespace pentatron::data::tokenizer::chat
