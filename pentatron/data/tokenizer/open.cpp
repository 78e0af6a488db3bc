#include "pentatron/data/tokenizer/open.h"

#include <algorithm>
#include <cctype>
#include <vector>

#include "pentatron/base/error.h"
#include "pentatron/base/gguf.h"
#include "pentatron/base/hf_cache.h"
#include "pentatron/base/json.h"
#include "pentatron/base/log.h"
#include "pentatron/base/mapped_file.h"
#include "pentatron/base/text.h"
#include "pentatron/base/tokenizer_names.h"
#include "pentatron/data/tokenizer/gguf_tokenizer.h"
#include "pentatron/data/tokenizer/hugging_face.h"
#include "pentatron/data/tokenizer/sentencepiece.h"
#include "pentatron/data/tokenizer/tiktoken.h"

namespace pentatron::data::tokenizer {

namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxFileBytes = size_t{256} << 20;

constexpr size_t kMaxStem = 100; // of a name that is kept
constexpr const char* kWhatIsATokenizer =
    "tokenizer.json, a .model, .tiktoken or .gguf file, or a folder that contains one";

bool is_folder(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

std::string read_text(const fs::path& path) {
  const MappedFile file(path, MappedFile::Access::kSequential);
  if (file.size() > kMaxFileBytes)
    raise<DataError>("{} has {} bytes, more than the limit of {} for a tokenizer file",
                     path.string(), file.size(), kMaxFileBytes);
  return std::string(file.text());
}

/// A line of base64, a space and digits.
bool looks_like_ranks(std::string_view text) {
  const std::string_view line = text.substr(0, std::min<size_t>(text.find('\n'), 2048));
  const size_t space = line.find(' ');
  return space != std::string_view::npos && space > 0 &&
         line.substr(0, space).find_first_not_of(
             "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=") ==
             std::string_view::npos &&
         line.find_first_not_of("0123456789\r", space + 1) == std::string_view::npos;
}

/// The folder `tokenizer` that a checkpoint of pentatron keeps, where `folder` is one or the folder
/// of a run's checkpoints; else `folder`.
fs::path of_checkpoint(const fs::path& folder) {
  fs::path checkpoint = folder;
  if (is_file(folder / "latest")) {
    const std::string name(trim(read_text(folder / "latest")));
    if (name.empty() || name.front() == '.' || name.find('/') != std::string::npos) return folder;
    checkpoint /= name;
  }
  return is_file(checkpoint / "manifest.json") && is_folder(checkpoint / "tokenizer")
             ? checkpoint / "tokenizer"
             : folder;
}

/// The file that names the tokenizer of a folder.
fs::path find_file(const fs::path& folder, FileType type) {
  std::vector<const char*> names;
  if (type == FileType::kAuto || type == FileType::kHuggingFace) names.push_back(kTokenizerJson);
  if (type == FileType::kAuto || type == FileType::kGpt2) names.push_back(kGpt2Vocabulary);
  if (type == FileType::kAuto || type == FileType::kSentencePiece || type == FileType::kTiktoken)
    names.insert(names.end(), kSentencePieceNames.begin(), kSentencePieceNames.end());
  for (const char* name : names)
    if (has_tokenizer_file(folder, name)) return folder / name;
  if (const auto only = only_tokenizer_file(folder, names.size() > 1)) return *only;
  raise<DataError>("{} contains no tokenizer\n  try: a folder with tokenizer.json, vocab.json and "
                   "merges.txt, tokenizer.model, or one .tiktoken file; or the file itself",
                   folder.string());
}

FileType type_of(const fs::path& file, const std::string& text, const Json& json) {
  if (!json.is_null()) {
    if (json.is_object() && json.contains("model")) return FileType::kHuggingFace;
    return FileType::kGpt2;
  }
  if (file.extension() == ".tiktoken" || looks_like_ranks(text)) return FileType::kTiktoken;
  return FileType::kSentencePiece;
}

/// Every kind but tiktoken's defines how text is split.
void refuse_pattern(const OpenOptions& options, const fs::path& file) {
  if (options.pattern.empty()) return;
  raise<ConfigError>("{}{} has no effect on {}, which defines how text is split into words\n  try: "
                     "remove {}",
                     options.pattern_name, options.pattern, file.string(),
                     options.pattern_name.substr(0, options.pattern_name.size() - 1));
}

/// A file of any name may be one, and one that is none is about something else.
SentencePieceModel sentencepiece_of(const fs::path& file, const std::string& text,
                                    const OpenOptions& options) {
  try {
    return read_sentencepiece(text);
  } catch (const DataError&) {
    if (options.type != FileType::kAuto || file.extension() == ".model") throw;
  }
  raise<DataError>("{} is not a tokenizer file\n  try: {}", file.string(), kWhatIsATokenizer);
}

std::shared_ptr<const Tokenizer> make(const fs::path& file, const OpenOptions& options) {
  if (options.type == FileType::kAuto && is_gguf(file)) {
    refuse_pattern(options, file);
    return make_gguf_tokenizer(GgufFile(file).metadata(), options.eod_token);
  }
  const std::string extension = file.extension().string();
  const bool is_json = extension == ".json" || options.type == FileType::kHuggingFace ||
                       options.type == FileType::kGpt2;
  if (extension == ".txt" && !is_json && options.type == FileType::kAuto)
    raise<DataError>("{} is not a tokenizer file\n  try: tokenizer.json, or the folder with "
                     "vocab.json and merges.txt",
                     file.string());
  const Json json = is_json ? read_json(file) : Json();
  const std::string text = is_json ? std::string() : read_text(file);
  const FileType type = options.type == FileType::kAuto ? type_of(file, text, json) : options.type;
  if (type != FileType::kTiktoken) refuse_pattern(options, file);
  const EodChoice eod{.required = options.eod_token,
                      .likely = configured_token(options.path, "eos_token")};
  std::shared_ptr<const Tokenizer> tokenizer;
  switch (type) {
  case FileType::kAuto:
  case FileType::kHuggingFace:
    return make_hugging_face(json, {.eod = eod});
  case FileType::kGpt2: {
    const fs::path merges = file.parent_path() / kGpt2Merges;
    if (!is_file(merges))
      raise<DataError>("{} is neither a tokenizer.json, because it has no `model`, nor a "
                       "vocab.json with a merges.txt beside it\n  try: {}",
                       file.string(), kWhatIsATokenizer);
    return make_hugging_face(gpt2_as_tokenizer_json(json, read_text(merges)),
                             {.name = "gpt2", .eod = eod});
  }
  case FileType::kSentencePiece:
    return make_sentencepiece(sentencepiece_of(file, text, options), {.eod = eod});
  case FileType::kTiktoken: {
    const Ranks ranks = read_tiktoken(text);
    TiktokenKind kind = find_tiktoken_kind(file.filename().string(), ranks);
    if (!options.pattern.empty()) {
      kind.options.pattern = tiktoken_pattern(options.pattern);
    } else if (!kind.known && !options.pattern_name.empty()) {
      log::shared_warning("{} does not define how text is split into words, and neither its name "
                          "nor its {} tokens are known; using the pattern of cl100k_base\n  try: "
                          "{}gpt2, llama3, qwen2, o200k or a regular expression",
                          file.string(), ranks.size(), options.pattern_name);
    }
    kind.options.eod = eod;
    return make_tiktoken(ranks, kind.options);
  }
  }
  return tokenizer;
}

/// What the user named: a file or a folder that exists.
fs::path existing(const fs::path& given) {
  const fs::path path = resolve_model_path(given);
  if (!is_folder(path) && !is_file(path))
    raise<DataError>("{} does not exist\n  try: {}", path.string(), kWhatIsATokenizer);
  return is_folder(path) ? of_checkpoint(path) : path;
}

fs::path main_file(const OpenOptions& options) {
  return is_folder(options.path) ? find_file(options.path, options.type) : options.path;
}

fs::path folder_of(const fs::path& path) {
  return is_folder(path) ? path : path.parent_path();
}

} // namespace

std::string configured_token(const fs::path& path, const std::string& name) {
  if (path.empty()) return {};
  if (is_gguf(path)) return gguf_named_token(GgufFile(path).metadata(), name);
  const fs::path file = folder_of(path) / "tokenizer_config.json";
  if (!is_file(file)) return {};
  const Json json = read_json(file);
  if (!json.is_object() || !json.contains(name)) return {};
  const Json& token = json[name];
  if (token.is_string()) return token.get<std::string>();
  if (token.is_object() && token.contains("content") && token["content"].is_string())
    return token["content"].get<std::string>();
  return {};
}

std::optional<std::string> find_chat_template(const fs::path& path) {
  if (path.empty()) return std::nullopt;
  if (is_gguf(path)) return gguf_chat_template(GgufFile(path).metadata());
  const fs::path folder = folder_of(path);
  if (is_file(folder / "chat_template.jinja")) return read_text(folder / "chat_template.jinja");
  const fs::path file = folder / "tokenizer_config.json";
  if (!is_file(file)) return std::nullopt;
  const Json json = read_json(file);
  if (!json.is_object() || !json.contains("chat_template")) return std::nullopt;
  const Json& found = json["chat_template"];
  if (found.is_string()) return found.get<std::string>();
  // A list of named templates: the one called default.
  if (found.is_array()) {
    for (const Json& entry : found) {
      if (json_get_or(entry, "name", std::string(), file.string()) == "default")
        return json_get<std::string>(entry, "template", file.string());
    }
  }
  return std::nullopt;
}

namespace {

/// The name under which find_file() finds a tokenizer that is copied into a folder of its own.
std::string name_in_folder(const fs::path& file, const std::string& text, FileType type) {
  std::string name = file.filename().string();
  const std::string extension = file.extension().string();
  if (type == FileType::kAuto)
    type = type_of(file, text, extension == ".json" ? read_json(file) : Json());
  switch (type) {
  case FileType::kGpt2:
    return kGpt2Vocabulary;
  case FileType::kSentencePiece:
    return std::ranges::find(kSentencePieceNames, name) == kSentencePieceNames.end()
               ? kSentencePieceNames[0]
               : name;
  case FileType::kTiktoken: // whose name tells which one it is
    if (name == kSentencePieceNames[0]) return name;
    name = file.stem().string().substr(0, kMaxStem);
    for (char& c : name)
      if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '-') c = '_';
    return name + ".tiktoken";
  default:
    return kTokenizerJson;
  }
}

OpenOptions found(const OpenOptions& given) {
  OpenOptions options = given;
  options.path = existing(given.path);
  options.path = main_file(options);
  return options;
}

} // namespace

std::vector<TokenizerFile> tokenizer_files(const OpenOptions& given) {
  const fs::path file = found(given).path;
  if (is_gguf(file)) {
    const GgufFile gguf(file);
    return {{kTokenizerJson, gguf_tokenizer_files(gguf.metadata()).at(kTokenizerJson)}};
  }
  std::string text = read_text(file);
  std::vector<TokenizerFile> files;
  files.push_back({name_in_folder(file, text, given.type), std::move(text)});
  const fs::path merges = file.parent_path() / kGpt2Merges;
  if (files[0].name == kGpt2Vocabulary && is_file(merges))
    files.push_back({kGpt2Merges, read_text(merges)});
  return files;
}

std::vector<TokenizerFile> files_beside_tokenizer(const OpenOptions& given) {
  const fs::path file = found(given).path;
  std::vector<TokenizerFile> files;
  if (is_gguf(file)) {
    const GgufFile gguf(file);
    for (auto& [name, text] : gguf_tokenizer_files(gguf.metadata()))
      if (name != kTokenizerJson) files.push_back({name, std::move(text)});
    return files;
  }
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
                           "chat_template.jinja"})
    if (const fs::path beside = file.parent_path() / name; is_file(beside))
      files.push_back({name, read_text(beside)});
  return files;
}

std::shared_ptr<const Tokenizer> open_tokenizer(const OpenOptions& given) {
  OpenOptions options = given;
  options.path = existing(given.path);
  const fs::path file = main_file(options);
  try {
    return make(file, options);
  } catch (const DataError& error) {
    const std::string message = error.what();
    if (message.find(file.string()) != std::string::npos) throw;
    raise<DataError>("{}: {}", file.string(), message);
  }
}

} // namespace pentatron::data::tokenizer
