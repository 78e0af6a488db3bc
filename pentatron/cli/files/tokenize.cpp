#include <CLI/CLI.hpp>

#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>

#include "pentatron/base/atomic_file.h"
#include "pentatron/base/error.h"
#include "pentatron/base/json.h"
#include "pentatron/base/mapped_file.h"
#include "pentatron/cli/files/file_verbs.h"
#include "pentatron/data/json_line.h"
#include "pentatron/data/line_reader.h"
#include "pentatron/data/tokenizer/open.h"
#include "pentatron/data/tokenizer/train_bpe.h"
#include "pentatron/data/utf8.h"

namespace pentatron::cli {

namespace {

constexpr int64_t kMaxLineBytes = int64_t{1} << 30;

struct TokenizeArguments {
  std::string tokenizer, pattern, output;
  bool decode = false, add_special = false;
  int64_t train_bpe = 0;
};

class StandardInput final : public data::ByteSource {
 public:
  size_t read(char* buffer, size_t capacity) override {
    const size_t got = std::fread(buffer, 1, capacity, stdin);
    if (got < capacity && std::ferror(stdin) != 0)
      throw DataError("standard input could not be read completely");
    return got;
  }
};

/// Calls `f(line)` for every line of standard input that is not empty, and says which one failed.
template <class F> void for_each_line(F&& f) {
  StandardInput input;
  data::LineReader lines(input, kMaxLineBytes);
  std::string_view line;
  for (;;) {
    const auto status = lines.next(line);
    if (status == data::LineReader::Status::kEnd) return;
    try {
      if (status == data::LineReader::Status::kTooLong)
        raise<DataError>("the line has {} bytes, more than the limit of {}", lines.line_bytes(),
                         kMaxLineBytes);
      if (line.find_first_not_of(" \t") != std::string_view::npos) f(line);
    } catch (const DataError& error) {
      raise<DataError>("line {} of standard input: {}", lines.line_number(), error.what());
    }
  }
}

/// The text of a line {"text": ...}.
void text_of(std::string_view line, std::string& text) {
  if (const size_t bad = data::find_invalid_utf8(line); bad != std::string_view::npos)
    raise<DataError>("byte {} is not valid UTF-8", bad);
  switch (data::extract_string(line, "text", text)) {
  case data::JsonField::kFound:
    return;
  case data::JsonField::kMissing:
    throw DataError("the JSON object has no field `text`");
  case data::JsonField::kNotString:
    throw DataError("the field `text` is not a string");
  case data::JsonField::kMalformed:
    throw DataError("the line is not a JSON object");
  }
}

void write_line(const std::string& line) {
  if (std::fwrite(line.data(), 1, line.size(), stdout) != line.size())
    throw DataError("cannot write to standard output");
}

void encode(const data::Tokenizer& tokenizer, bool add_special) {
  const auto encoder = tokenizer.make_encoder();
  std::string text, out;
  std::vector<int32_t> ids;
  for_each_line([&](std::string_view line) {
    text_of(line, text);
    ids.clear();
    if (add_special) {
      tokenizer.encode_with_special(text, ids);
    } else {
      encoder->encode(text, ids);
    }
    out = "{\"ids\":[";
    for (size_t i = 0; i < ids.size(); ++i)
      fmt::format_to(std::back_inserter(out), "{}{}", i == 0 ? "" : ",", ids[i]);
    out += "]}\n";
    write_line(out);
  });
}

void decode(const data::Tokenizer& tokenizer) {
  for_each_line([&](std::string_view line) {
    const Json json = parse_json(line, "it");
    const auto ids = json_get<std::vector<int64_t>>(json, "ids", "the object");
    write_line(dump_json(Json{{"text", tokenizer.decode_with_special(ids)}}) + "\n");
  });
}

/// Whether the file may be replaced by another one that --train-bpe writes.
bool is_tokenizer(const std::filesystem::path& file) {
  try {
    const MappedFile mapped(file);
    return mapped.size() == 0 || parse_json(mapped.text(), file.string())["model"]["type"] == "BPE";
  } catch (const std::exception&) {
    return false;
  }
}

/// Lines are JSON with a text if the first one is.
int train(const TokenizeArguments& arguments) {
  if (arguments.output.empty())
    throw ConfigError("--train-bpe needs --output\n  try: --output tokenizer.json");
  if (std::error_code error;
      std::filesystem::exists(arguments.output, error) && !is_tokenizer(arguments.output))
    raise<ConfigError>(
        "{} exists and is no tokenizer that --train-bpe has written\n  try: --output "
        "{}-2.json",
        arguments.output, std::filesystem::path(arguments.output).replace_extension().string());
  data::tokenizer::BpeTrainer trainer(
      {.vocab_size = arguments.train_bpe, .pattern = arguments.pattern});
  bool first = true, is_json = false;
  int64_t bytes = 0;
  std::string text;
  for_each_line([&](std::string_view line) {
    if (first) is_json = line.front() == '{';
    first = false;
    if (is_json) {
      text_of(line, text);
    } else {
      if (const size_t bad = data::find_invalid_utf8(line); bad != std::string_view::npos)
        raise<DataError>("byte {} is not valid UTF-8", bad);
      text.assign(line);
      text += '\n';
    }
    bytes += static_cast<int64_t>(text.size());
    trainer.add(text);
  });
  const Json json = trainer.train();
  write_file_atomically(arguments.output, dump_json(json, 1) + "\n");
  fmt::print(stderr, "{}: {} tokens from {} bytes of text\n", arguments.output,
             json["model"]["vocab"].size(), bytes);
  return 0;
}

int tokenize(const TokenizeArguments& arguments) {
  if (arguments.train_bpe != 0) {
    if (!arguments.tokenizer.empty() || arguments.decode || arguments.add_special)
      throw ConfigError("--train-bpe cannot be used with --tokenizer, --decode or --add-special");
    return train(arguments);
  }
  if (arguments.tokenizer.empty())
    throw ConfigError("--tokenizer is missing\n  try: --tokenizer tokenizer.json");
  if (!arguments.output.empty())
    throw ConfigError(
        "--output can only be used with --train-bpe; other results are written to standard output");
  if (arguments.decode && arguments.add_special)
    throw ConfigError("--add-special cannot be used with --decode");
  const auto tokenizer =
      data::tokenizer::open_tokenizer({.path = arguments.tokenizer, .pattern = arguments.pattern});
  if (arguments.decode) {
    decode(*tokenizer);
  } else {
    encode(*tokenizer, arguments.add_special);
  }
  if (std::fflush(stdout) != 0) throw DataError("cannot write to standard output");
  return 0;
}

} // namespace

void add_tokenize(CLI::App& program, Action& chosen) {
  auto arguments = std::make_shared<TokenizeArguments>();
  CLI::App* verb = program.add_subcommand(
      "tokenize", "convert text to token ids or back, or train a tokenizer; reads standard input");
  verb->add_option("--tokenizer", arguments->tokenizer,
                   "tokenizer: tokenizer.json, a .model, .tiktoken or .gguf file, or a folder that "
                   "contains one");
  verb->add_flag("--decode", arguments->decode,
                 "convert token ids to text: read {\"ids\":[...]} and write {\"text\":...}, "
                 "including special tokens");
  verb->add_flag("--add-special", arguments->add_special,
                 "add the special tokens that the tokenizer puts around a text");
  verb->add_option("--train-bpe", arguments->train_bpe,
                   "train a byte-level BPE tokenizer with this many tokens on text or JSON Lines");
  verb->add_option("--pattern", arguments->pattern,
                   "how text is split into words; for .tiktoken files: gpt2, cl100k, llama3, "
                   "qwen2, o200k or a regular expression; for --train-bpe: a regular expression");
  verb->add_option("--output", arguments->output,
                   "file to write the trained tokenizer to (tokenizer.json)");
  verb->footer("For each JSON line {\"text\":...}, writes a line {\"ids\":[...]}.\nexample: "
               "pentatron tokenize --tokenizer tokenizer.json < corpus.jsonl > ids.jsonl");
  verb->callback([arguments, &chosen] { chosen = [arguments] { return tokenize(*arguments); }; });
}

} // namespace pentatron::cli
