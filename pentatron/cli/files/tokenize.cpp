#include <CLI/CLI.hpp>

#include <array>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include "pentatron/base/atomic_file.h"
#include "pentatron/base/error.h"
#include "pentatron/base/format.h"
#include "pentatron/base/json.h"
#include "pentatron/base/log.h"
#include "pentatron/base/mapped_file.h"
#include "pentatron/base/naming.h"
#include "pentatron/base/paths.h"
#include "pentatron/base/progress.h"
#include "pentatron/base/text.h"
#include "pentatron/cli/files/file_verbs.h"
#include "pentatron/data/byte_source.h"
#include "pentatron/data/input_files.h"
#include "pentatron/data/json_line.h"
#include "pentatron/data/line_reader.h"
#include "pentatron/data/preprocess/open_tokenizer.h"
#include "pentatron/data/record_reader.h"
#include "pentatron/data/tokenizer/byte_tokenizer_files.h"
#include "pentatron/data/tokenizer/train_bpe.h"
#include "pentatron/data/utf8.h"

namespace pentatron::cli {

namespace {

constexpr int64_t kMaxLineBytes = int64_t{1} << 30;
constexpr int64_t kFewestTokens = 257; // the bytes and the end of a document

struct TokenizeArguments {
  std::string tokenizer, pattern, output;
  std::vector<std::string> inputs, json_keys = {"text"};
  bool decode = false, add_special = false, overwrite = false;
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

/// The text of a line {"text": ...}. `chosen`: --json-keys has named the key.
void text_of(std::string_view line, std::string& text, const std::string& key = "text",
             bool chosen = false) {
  if (const size_t bad = data::find_invalid_utf8(line); bad != std::string_view::npos)
    raise<DataError>("byte {} is not valid UTF-8\n  try: text in UTF-8", bad);
  const auto none = data::read_text(line, key, text);
  if (!none) return;
  const bool other = chosen && !none->key.empty();
  raise<DataError>("{} {}\n  try: {}",
                   none->kind == data::BadInput::kMissingKey ? "the JSON object" : "it",
                   none->reason,
                   other ? "--json-keys " + none->key
                         : fmt::format("JSON objects like {{\"{}\": \"...\"}}", key));
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

/// Where the two files of a trained tokenizer go.
struct TrainedFiles {
  std::filesystem::path tokenizer, config;
};

/// Whether a tokenizer may be written there: the files are those of one.
void check_trained_files(const TrainedFiles& files, const TokenizeArguments& arguments) {
  require_output(files.tokenizer, "--output");
  if (!arguments.overwrite) return refuse_existing(std::array{files.tokenizer, files.config});
  const std::filesystem::path folder = files.tokenizer.parent_path();
  if (is_there(folder / "config.json") && is_there(files.tokenizer))
    raise<ConfigError>("--output {} is {} the model in {}, which needs it\n  try: --output {}",
                       files.tokenizer.string(),
                       files.tokenizer.filename() == "config.json" ? "the configuration of"
                                                                   : "the tokenizer of",
                       folder.string(), shell_word(free_path(folder.string()).string()));
  const std::vector<std::filesystem::path> inputs(arguments.inputs.begin(), arguments.inputs.end());
  const auto has = [](const char* member) {
    return [member](const std::filesystem::path& file) {
      try {
        return parse_json(MappedFile(file).text(), file.string()).contains(member);
      } catch (const Error&) {
        return false;
      }
    };
  };
  check_replaced(files.tokenizer, inputs, "--output", "a tokenizer", has("model"));
  if (!files.config.empty())
    check_replaced(files.config, inputs, "--output", "the configuration of a tokenizer",
                   has("tokenizer_class"));
}

TrainedFiles trained_files(const std::string& output) {
  namespace fs = std::filesystem;
  if (output.empty())
    throw ConfigError("--train-bpe needs --output\n  try: --output tokenizer.json");
  std::error_code error;
  TrainedFiles files;
  // A file of another name is not recognized as a tokenizer.
  const bool folder = !output.ends_with(".json") && !fs::is_regular_file(output, error);
  files.tokenizer = behind_links(folder ? fs::path(output) / "tokenizer.json" : fs::path(output));
  // Only beside a file of its usual name does Hugging Face look for it.
  if (files.tokenizer.filename() == "tokenizer.json")
    files.config = files.tokenizer.parent_path() / "tokenizer_config.json";
  return files;
}

/// Adds the text of a trainer's input and counts its bytes.
class TrainingText {
 public:
  TrainingText(data::tokenizer::BpeTrainer& trainer, const std::vector<std::string>& keys)
      : trainer_(trainer), keys_(keys) {}

  void read_files(const std::vector<std::string>& inputs) {
    for (const data::InputFile& file : data::find_input_files(inputs, "--input").files) {
      const std::string name = file.path.string();
      naming(
          "--input ", name,
          [&] {
            const auto source = data::open_input(file, keys_);
            read(*source, name, file.format != data::FileFormat::kText);
          },
          "--input with text in UTF-8, JSON Lines or a JSON array of objects");
    }
  }
  /// Lines are JSON if the first one is; else, or of text files, they are text.
  void read(data::ByteSource& source, const std::string& name, std::optional<bool> json) {
    using Form = data::RecordReader::Form;
    data::RecordReader records(source, kMaxLineBytes, name,
                               json == false ? Form::kLines : Form::kDetect);
    std::string_view record;
    for (auto status = records.next(record); status != data::RecordReader::Status::kEnd;
         status = records.next(record)) {
      try {
        if (status == data::RecordReader::Status::kTooLong)
          raise<DataError>("it has {} bytes, more than the limit of {}", records.record_bytes(),
                           kMaxLineBytes);
        const size_t first = record.find_first_not_of(" \t\r\n");
        if (!json && first != std::string_view::npos)
          json = records.is_array() || record[first] == '{';
        if (!json.value_or(false)) {
          add_line(record);
        } else if (first != std::string_view::npos) {
          add_object(record);
        }
      } catch (const DataError& error) {
        raise<DataError>("{}: {} {}: {}", name, records.is_array() ? "element" : "line",
                         records.number(), error.what());
      }
    }
  }
  int64_t bytes() const { return bytes_; }

 private:
  void add_line(std::string_view line) {
    if (const size_t bad = data::find_invalid_utf8(line); bad != std::string_view::npos)
      raise<DataError>("byte {} is not valid UTF-8\n  try: text in UTF-8", bad);
    text_.assign(line);
    text_ += '\n';
    add();
  }
  void add_object(std::string_view object) {
    for (const std::string& key : keys_) {
      text_of(object, text_, key, /*chosen=*/true);
      add();
    }
  }
  void add() {
    bytes_ += static_cast<int64_t>(text_.size());
    trainer_.add(text_);
  }

  data::tokenizer::BpeTrainer& trainer_;
  const std::vector<std::string>& keys_;
  std::string text_;
  int64_t bytes_ = 0;
};

int train(const TokenizeArguments& arguments) {
  const TrainedFiles files = trained_files(arguments.output);
  check_trained_files(files, arguments);
  data::tokenizer::BpeTrainer trainer(
      {.vocab_size = arguments.train_bpe, .pattern = arguments.pattern});
  TrainingText text(trainer, arguments.json_keys);
  if (arguments.inputs.empty()) {
    StandardInput input;
    text.read(input, "standard input", std::nullopt);
  } else {
    text.read_files(arguments.inputs);
  }
  if (text.bytes() == 0)
    raise<DataError>("{} contains no text to train a tokenizer on\n  try: --input with a file or "
                     "folder that contains text",
                     arguments.inputs.empty()
                         ? "standard input"
                         : fmt::format("--input {}", fmt::join(arguments.inputs, ",")));
  const Json json = trainer.train();
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::absolute(files.tokenizer).parent_path(),
                              before = nearest_existing(folder);
  std::filesystem::create_directories(folder, error);
  // Two commands may have found the place free: one of them writes both files.
  const FolderLock one_at_a_time(files.tokenizer.parent_path());
  check_trained_files(files, arguments);
  const auto write = [&] {
    AtomicFile tokenizer(files.tokenizer);
    tokenizer.write(dump_json(json, 1) + "\n");
    if (!files.config.empty())
      write_file_atomically(files.config,
                            data::tokenizer::tokenizer_config_json(
                                json["added_tokens"][0]["content"].get<std::string>()));
    tokenizer.commit();
  };
  try {
    naming("--output ", arguments.output, write, "another --output");
  } catch (const Error&) {
    for (std::filesystem::path made = folder; made != before && !error; made = made.parent_path())
      std::filesystem::remove(made, error); // which is empty
    throw;
  }
  const int64_t size = std::ssize(json["model"]["vocab"]);
  log::print(fmt::format("{}: {} from {} of text", files.tokenizer.string(), counted(size, "token"),
                         counted(text.bytes(), "byte")));
  if (size < arguments.train_bpe)
    log::warning("--train-bpe {} is more than this text needs: with {}, every word of it is one "
                 "token\n  try: --train-bpe {}, or more text",
                 arguments.train_bpe, counted(size, "token"), size);
  return 0;
}

int tokenize(const TokenizeArguments& arguments) {
  if (arguments.train_bpe != 0) {
    const char* const other = !arguments.tokenizer.empty() ? "--tokenizer"
                              : arguments.decode           ? "--decode"
                              : arguments.add_special      ? "--add-special"
                                                           : nullptr;
    if (other != nullptr)
      raise<ConfigError>("--train-bpe cannot be used with {0}\n  try: remove {0}", other);
    return train(arguments);
  }
  if (!arguments.inputs.empty())
    throw ConfigError(
        "--input can only be used with --train-bpe; other texts are read from standard "
        "input\n  try: pentatron tokenize --tokenizer PATH < FILE");
  if (!arguments.output.empty())
    throw ConfigError(
        "--output can only be used with --train-bpe; other results are written to standard "
        "output\n  try: remove --output");
  if (arguments.tokenizer.empty())
    throw ConfigError("--tokenizer is missing\n  try: --tokenizer tokenizer.json");
  if (arguments.decode && arguments.add_special)
    throw ConfigError("--add-special cannot be used with --decode\n  try: remove --add-special");
  const auto tokenizer = data::open_tokenizer(arguments.tokenizer, arguments.pattern);
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
  verb->add_option(
      "--tokenizer", arguments->tokenizer,
      "tokenizer: tokenizer.json, a .model, .tiktoken or .gguf file, a folder that "
      "contains one, ORG/NAME of a downloaded Hugging Face model, or bytes for one token per "
      "byte");
  verb->add_flag("--decode", arguments->decode,
                 "convert token ids to text: read {\"ids\":[...]} and write {\"text\":...}, "
                 "including special tokens");
  verb->add_flag("--add-special", arguments->add_special,
                 "add the special tokens that the tokenizer puts around a text");
  verb->add_option("--train-bpe", arguments->train_bpe,
                   "train a byte-level BPE tokenizer with this many tokens on the text of --input")
      ->check(CLI::Range(kFewestTokens, data::tokenizer::BpeTrainer::kMostTokens));
  verb->add_option(
      "--input", arguments->inputs,
      "with --train-bpe: files (.txt, .md, .jsonl, .json with JSON Lines or an array of objects, "
      "each also as .gz or .zst; .parquet) or folders; default: text, JSON Lines or a JSON array "
      "from standard input");
  verb->add_option("--json-keys", arguments->json_keys,
                   "with --train-bpe: keys of the JSON objects that contain text, separated by "
                   "commas")
      ->needs("--train-bpe")
      ->delimiter(',')
      ->capture_default_str();
  verb->add_option("--pattern", arguments->pattern,
                   "how text is split into words; for .tiktoken files: gpt2, cl100k, llama3, "
                   "qwen2, o200k or a regular expression; for --train-bpe: a regular expression");
  verb->add_option("--output", arguments->output,
                   "with --train-bpe: file for the trained tokenizer, or its folder; "
                   "tokenizer_config.json is written to the same folder");
  verb->add_flag("--overwrite", arguments->overwrite,
                 "with --train-bpe: replace an existing tokenizer")
      ->needs("--train-bpe");
  verb->footer(
      "For each JSON line {\"text\":...} of standard input, writes a line {\"ids\":[...]}.\n"
      "examples:\n"
      "  pentatron tokenize --tokenizer tokenizer.json < corpus.jsonl > ids.jsonl\n"
      "  pentatron tokenize --train-bpe 8000 --input corpus.jsonl.gz --json-keys text "
      "--output tokenizer.json");
  verb->callback([arguments, &chosen] { chosen = [arguments] { return tokenize(*arguments); }; });
}

} // namespace pentatron::cli
