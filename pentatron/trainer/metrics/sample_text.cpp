#include "pentatron/trainer/metrics/sample_text.h"

#include <fmt/format.h>

#include "pentatron/base/json.h"
#include "pentatron/base/text.h"

namespace pentatron::trainer {

namespace {

/// Text that a model wrote cannot steer a terminal.
std::string harmless(std::string text) {
  for (char& c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7f) c = '?';
  }
  return text;
}

/// Each line behind `before`.
std::string with_each_line(const std::string& text, const std::string& before) {
  std::string lines;
  for (const std::string_view line : split(text, '\n')) lines += before + std::string(line) + "\n";
  return lines;
}

} // namespace

std::string sample_line(int64_t iteration, size_t sample, const std::string& prompt,
                        const std::string& text) {
  return fmt::format(R"({{"iteration":{},"sample":{},"prompt":{},"text":{}}})", iteration, sample,
                     dump_json(Json(prompt)), dump_json(Json(text)));
}

std::string sample_markdown(const std::string& prompt, const std::string& text) {
  return with_each_line(prompt, "> ") + "\n" + with_each_line(text, "    ");
}

std::string sample_text(const std::string& prompt, const std::string& text) {
  const std::string shown = harmless(text);
  return fmt::format("{}{}{}", prompt.empty() ? "" : harmless(prompt) + " ->",
                     shown.find('\n') == std::string::npos ? (prompt.empty() ? "" : " ") : "\n",
                     shown);
}

} // namespace pentatron::trainer
