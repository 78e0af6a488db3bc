/// The fixed parts of the completion scripts. They call functions that completion.cpp makes from
/// the table of commands: _pentatron_commands, _pentatron_options and so on.
#pragma once

namespace pentatron::cli {

extern const char* const kBashCompletion;
extern const char* const kZshCompletion;

} // namespace pentatron::cli
