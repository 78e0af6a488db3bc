/// What a model writes during a run, as the run shows it.
#pragma once

#include <cstdint>
#include <string>

namespace pentatron::trainer {

/// The line of samples.jsonl, without its end: iteration, sample (its number), prompt, text.
std::string sample_line(int64_t iteration, size_t sample, const std::string& prompt,
                        const std::string& text);
/// For TensorBoard: the prompt as a quotation, the text as code.
std::string sample_markdown(const std::string& prompt, const std::string& text);
/// For the console: both, without control characters, on a line of their own if they have several.
std::string sample_text(const std::string& prompt, const std::string& text);

} // namespace pentatron::trainer
