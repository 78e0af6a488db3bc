#include "pentatron/cli/prompts.h"

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string_view>

#include <sys/stat.h>
#include <unistd.h>

#include "pentatron/base/error.h"
#include "pentatron/base/log.h"
#include "pentatron/data/byte_source.h"
#include "pentatron/data/json_line.h"
#include "pentatron/data/line_reader.h"
#include "pentatron/data/utf8.h"

namespace pentatron::cli {

namespace {

constexpr int64_t kMaxPromptBytes = int64_t{1} << 28;

bool is_named_json_lines(std::filesystem::path file) {
  if (data::compression_of(file) != data::Compression::kNone) file = file.stem();
  return file.extension() == ".jsonl" || file.extension() == ".ndjson";
}

[[noreturn]] void raise_no_prompt_in(const std::string& file, int64_t line) {
  raise<DataError>("{}: line {} is not a JSON object with a string `prompt`, which each line of a "
                   "JSON Lines file of prompts needs to be\n  try: {{\"prompt\": \"It is\"}}",
                   file, line);
}

} // namespace

std::vector<std::string> read_prompt_file(const std::string& file) {
  const std::unique_ptr<data::ByteSource> source = data::open_source(file);
  data::LineReader lines(*source, kMaxPromptBytes);
  std::vector<std::string> prompts;
  std::string_view line;
  bool json = is_named_json_lines(file);
  int64_t malformed = 0; // the first line, if it only begins like an object
  while (true) {
    const auto status = lines.next(line);
    if (status == data::LineReader::Status::kEnd) break;
    if (status == data::LineReader::Status::kTooLong)
      raise<DataError>("{}: line {} has {} bytes, more than the limit of {}", file,
                       lines.line_number(), lines.line_bytes(), kMaxPromptBytes);
    if (lines.line_number() == 1 && line.starts_with(data::kByteOrderMark))
      line.remove_prefix(data::kByteOrderMark.size());
    const size_t begin = line.find_first_not_of(" \t");
    if (begin == std::string_view::npos) continue;
    if (data::find_invalid_utf8(line) != std::string_view::npos)
      raise<DataError>("{}: line {} is not valid UTF-8", file, lines.line_number());
    std::string text;
    const data::JsonField found = data::extract_string(line, "prompt", text);
    if (prompts.empty() && line[begin] == '{') {
      if (found == data::JsonField::kMalformed) {
        malformed = lines.line_number();
      } else {
        json = true;
      }
    }
    if (json && found != data::JsonField::kFound) raise_no_prompt_in(file, lines.line_number());
    if (malformed > 0 && found == data::JsonField::kFound) raise_no_prompt_in(file, malformed);
    prompts.push_back(json ? text : std::string(line));
  }
  if (prompts.empty())
    raise<DataError>("{} contains no prompt\n  try: one prompt on each line, or {{\"prompt\": "
                     "\"...\"}}",
                     file);
  return prompts;
}

bool has_piped_input() {
  struct stat info = {};
  if (::fstat(STDIN_FILENO, &info) != 0) return false;
  return S_ISFIFO(info.st_mode) || S_ISSOCK(info.st_mode) || S_ISREG(info.st_mode);
}

std::string read_piped_prompt() {
  log::info("reading the prompt from standard input");
  std::string text;
  char buffer[1 << 16];
  for (size_t n = 0; (n = std::fread(buffer, 1, sizeof buffer, stdin)) > 0;) {
    text.append(buffer, n);
    if (text.size() > static_cast<size_t>(kMaxPromptBytes))
      raise<DataError>("standard input has more than {} bytes, too many for a prompt",
                       kMaxPromptBytes);
  }
  if (std::ferror(stdin) != 0) throw DataError("standard input could not be read completely");
  if (text.ends_with('\n')) text.pop_back();
  if (text.ends_with('\r')) text.pop_back();
  if (data::find_invalid_utf8(text) != std::string_view::npos)
    throw DataError("standard input is not valid UTF-8");
  return text;
}

} // namespace pentatron::cli
