#include "pentatron/cli/prompts.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string_view>

#include <sys/stat.h>
#include <unistd.h>

#include "pentatron/base/error.h"
#include "pentatron/base/format.h"
#include "pentatron/base/json.h"
#include "pentatron/base/log.h"
#include "pentatron/base/text.h"
#include "pentatron/data/byte_source.h"
#include "pentatron/data/json_line.h"
#include "pentatron/data/record_reader.h"
#include "pentatron/data/utf8.h"

namespace pentatron::cli {

namespace {

constexpr int64_t kMaxPromptBytes = int64_t{1} << 28;

bool is_named_json_lines(std::filesystem::path file) {
  if (data::compression_of(file) != data::Compression::kNone) file = file.stem();
  return file.extension() == ".jsonl" || file.extension() == ".ndjson";
}

bool is_named_json(std::filesystem::path file) {
  if (data::compression_of(file) != data::Compression::kNone) file = file.stem();
  return file.extension() == ".json";
}

[[noreturn]] void raise_no_prompt_in(const std::string& file, int64_t number,
                                     std::string_view line = {}) {
  const data::ObjectKeys keys = data::object_keys(line);
  raise<DataError>("{}: line {} is not a JSON object with a string `prompt`, which each line of a "
                   "JSON Lines file of prompts needs to be{}\n  try: {{\"prompt\": \"It is\"}}",
                   file, number, keys.all.empty() ? "" : "; " + data::keys_text(keys));
}

[[noreturn]] void raise_spread_object(const std::string& file, int64_t line) {
  raise<DataError>("{}: line {} begins a JSON object that ends on a later line, but a file of "
                   "prompts has one object per line\n  try: {{\"prompt\": \"It is\"}}",
                   file, line);
}

std::optional<std::string> adapter_of(const Json& prompt, const std::string& where) {
  const auto found = prompt.find("adapter");
  if (found == prompt.end()) return std::nullopt;
  if (found->is_null()) return "";
  if (!found->is_string())
    raise<DataError>("{}: adapter={} is not a name\n  try: {{\"prompt\": \"It is\", \"adapter\": "
                     "\"NAME\"}} with a NAME of --adapter NAME=DIR, or null for the model alone",
                     where, excerpt(dump_json(*found)));
  return found->get<std::string>();
}

/// A string, or an object with the string `prompt`.
FilePrompt prompt_of_element(std::string_view element, const std::string& where) {
  const Json json = parse_json(element, where);
  if (json.is_string()) return {json.get<std::string>(), std::nullopt};
  if (json.is_object() && json.contains("prompt") && json["prompt"].is_string())
    return {json["prompt"].get<std::string>(), adapter_of(json, where)};
  raise<DataError>("{} is neither a string nor an object with a string `prompt`\n  try: [\"It "
                   "is\", {{\"prompt\": \"There was\"}}]",
                   where);
}

/// The records of a file with the texts of prompts, and what is common to both forms of it.
class PromptRecords {
 public:
  using Form = data::RecordReader::Form;
  explicit PromptRecords(const std::string& file)
      : file_(file), source_(data::open_source(file)),
        records_(*source_, kMaxPromptBytes, file,
                 is_named_json(file) ? Form::kDetect : Form::kLines) {}

  /// False at the end.
  bool next(std::string_view& record) {
    using Status = data::RecordReader::Status;
    const Status status = records_.next(record);
    if (status == Status::kEnd) return false;
    if (status == Status::kTooLong)
      raise<DataError>("{} has {} bytes, more than the limit of {}", where(),
                       records_.record_bytes(), kMaxPromptBytes);
    if (number() == 1 && record.starts_with(kByteOrderMark))
      record.remove_prefix(kByteOrderMark.size());
    if (data::find_invalid_utf8(record) != std::string_view::npos)
      raise<DataError>("{} is not valid UTF-8\n  try: a file with text in UTF-8", where());
    return true;
  }
  bool is_array() const { return records_.is_array(); }
  int64_t number() const { return records_.number(); }
  std::string where() const {
    return fmt::format("{}: {} {}", file_, is_array() ? "element" : "line", number());
  }

 private:
  std::string file_;
  std::unique_ptr<data::ByteSource> source_;
  data::RecordReader records_;
};

/// Collects the prompts of lines: texts, or JSON Lines if the first one is an object.
class PromptLines {
 public:
  PromptLines(std::string file, std::vector<FilePrompt>& prompts)
      : file_(std::move(file)), prompts_(prompts), json_(is_named_json_lines(file_)),
        named_json_(json_ || is_named_json(file_)) {}

  void add(std::string_view line, int64_t number) {
    const size_t begin = line.find_first_not_of(" \t");
    if (begin == std::string_view::npos) {
      empty_.push_back(number);
      return;
    }
    std::string text;
    const data::JsonField found = data::extract_string(line, "prompt", text);
    if (prompts_.empty() && line[begin] == '{') {
      if (found == data::JsonField::kMalformed) {
        if (named_json_ && goes_on(line)) raise_spread_object(file_, number);
        malformed_ = number;
      } else {
        json_ = true;
      }
    }
    // `{` and then `"prompt": ...` is no text, whatever the file is called.
    if (malformed_ > 0 && prompts_.size() == 1 && goes_on(prompts_[0].text) && line[begin] == '"')
      raise_spread_object(file_, malformed_);
    if (json_ && found != data::JsonField::kFound) raise_no_prompt_in(file_, number, line);
    if (malformed_ > 0 && found == data::JsonField::kFound) raise_no_prompt_in(file_, malformed_);
    if (json_)
      prompts_.push_back({text, adapter_in(line, number)});
    else
      prompts_.push_back({std::string(line), std::nullopt});
    last_ = number;
  }
  /// Outputs have fewer lines than the file: those behind the last prompt mean nothing.
  void tell_empty() const {
    const auto between = std::ranges::count_if(empty_, [&](int64_t n) { return n < last_; });
    if (between == 0) return;
    log::warning("{} of {} {} no prompt and no output; the first is line {}",
                 counted(between, "line"), file_, between == 1 ? "has" : "have", empty_.front());
  }

 private:
  /// Of a line that begins like an object: whether its end is where JSON is broken into lines.
  static bool goes_on(std::string_view line) {
    const size_t end = line.find_last_not_of(" \t\r");
    return end != std::string_view::npos &&
           std::string_view("{,:[").find(line[end]) != std::string_view::npos;
  }

  std::optional<std::string> adapter_in(std::string_view line, int64_t number) const {
    std::string ignored;
    if (data::extract_string(line, "adapter", ignored) == data::JsonField::kMissing)
      return std::nullopt;
    const std::string where = fmt::format("{}: line {}", file_, number);
    return adapter_of(parse_json(line, where), where);
  }

  std::string file_;
  std::vector<FilePrompt>& prompts_;
  bool json_, named_json_;
  std::vector<int64_t> empty_;
  int64_t last_ = 0;      ///< the last line with a prompt
  int64_t malformed_ = 0; ///< the first line, if it only begins like an object
};

} // namespace

std::vector<FilePrompt> read_prompt_file(const std::string& file) {
  PromptRecords records(file);
  std::vector<FilePrompt> prompts;
  PromptLines lines(file, prompts);
  for (std::string_view record; records.next(record);) {
    if (records.is_array()) {
      prompts.push_back(prompt_of_element(record, records.where()));
    } else {
      lines.add(record, records.number());
    }
  }
  lines.tell_empty();
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
