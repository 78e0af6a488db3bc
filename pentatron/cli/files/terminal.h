/// Text of models and files on a terminal.
#pragma once

#include <string>

namespace pentatron::cli {

/// Whether standard output is one.
bool on_terminal();

/// Writes to standard output. What cannot be written is told when the program ends, so that it does
/// not end the work before that.
void write_out(const std::string& text);

/// `text` folded where standard output is a terminal on which it does not fit.
std::string folded_for_terminal(std::string text);

/// `text` folded where standard error is a terminal on which it does not fit.
std::string folded_for_errors(std::string text);

/// Text for standard output: control characters become '?' where that is a terminal, so that the
/// text cannot steer it.
std::string for_terminal(std::string text);

} // namespace pentatron::cli
