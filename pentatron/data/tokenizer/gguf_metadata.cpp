#include "pentatron/data/tokenizer/gguf_metadata.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>

#include "pentatron/base/error.h"
#include "pentatron/base/json.h"
#include "pentatron/base/log.h"
#include "pentatron/base/mapped_file.h"
#include "pentatron/base/text.h"
#include "pentatron/data/tokenizer/component.h"
#include "pentatron/data/tokenizer/gguf_pre.h"
#include "pentatron/data/tokenizer/open.h"
#include "pentatron/data/tokenizer/post_processor.h"
#include "pentatron/data/tokenizer/sentencepiece.h"

namespace pentatron::data::tokenizer {

namespace {

namespace fs = std::filesystem;

std::string type_of(const Json& component) {
  return component.is_object() ? component.value("type", "") : std::string();
}

/// Tokens in the order of their ids.
struct TokenTable {
  std::vector<std::string> texts;
  std::vector<int32_t> types;
  std::vector<float> scores;

  explicit TokenTable(int64_t count) {
    for (int64_t id = 0; id < count; ++id) texts.push_back(fmt::format("[PAD{}]", id));
    types.assign(texts.size(), static_cast<int32_t>(PieceType::kUnused));
    scores.assign(texts.size(), -10000.0F);
  }
  void set(int64_t id, const std::string& text, PieceType type, float score) {
    if (id < 0 || static_cast<uint64_t>(id) >= texts.size())
      raise<DataError>("the token '{}' has the id {}, but the model has {} tokens", excerpt(text),
                       id, texts.size());
    const auto at = static_cast<size_t>(id);
    texts[at] = text;
    types[at] = static_cast<int32_t>(type);
    scores[at] = score;
  }
  std::optional<int64_t> find(const std::string& text) const {
    const auto it = std::ranges::find(texts, text);
    if (text.empty() || it == texts.end()) return std::nullopt;
    return it - texts.begin();
  }
};

/// Some models mark tokens as not special that llama.cpp has to treat so.
bool looks_special(const std::string& token) {
  return token == "<pad>" || token == "<mask>" || token == "<2mass>" || token == "[@BOS@]" ||
         (token.starts_with("<|") && token.ends_with("|>")) ||
         (token.starts_with("<\uFF5C") && token.ends_with("\uFF5C>")) ||
         (token.starts_with("<unused") && token.ends_with(">"));
}

void add_added_tokens(const Json& json, TokenTable& tokens) {
  for (const Json& added : member(json, "added_tokens")) {
    const auto text = json_get<std::string>(added, "content", "an added token");
    const auto id = json_get<int64_t>(added, "id", "an added token");
    const bool known = id >= 0 && static_cast<uint64_t>(id) < tokens.texts.size() &&
                       tokens.texts[static_cast<size_t>(id)] == text;
    const auto type =
        known ? static_cast<PieceType>(tokens.types[static_cast<size_t>(id)]) : PieceType::kNormal;
    // <unk> and byte tokens stay what they are.
    if (type == PieceType::kUnknown || type == PieceType::kByte) continue;
    const bool special = json_get_or<bool>(added, "special", false, "an added token");
    tokens.set(id, text,
               special || looks_special(text) ? PieceType::kControl : PieceType::kUserDefined,
               -1000.0F);
  }
}

/// Which token is <s> and so on, and whether texts begin and end so.
class SpecialTokens {
 public:
  SpecialTokens(const fs::path& path, const Json& tokenizer_json, const TokenTable& tokens)
      : path_(path), folder_(fs::is_directory(path) ? path : path.parent_path()), tokens_(tokens) {
    if (is_file(folder_ / "config.json")) config_ = read_json(folder_ / "config.json");
    if (is_file(folder_ / "tokenizer_config.json"))
      tokenizer_config_ = read_json(folder_ / "tokenizer_config.json");
    const Json& post_processor = member(tokenizer_json, "post_processor");
    if (!post_processor.is_null()) around_ = make_post_processor(post_processor);
  }

  /// Where no configuration names the token.
  void fall_back(const std::string& name, const std::string& text) { otherwise_[name] = text; }

  void put(GgufMetadata& out, bool bos_by_default) const {
    put_id(out, "tokenizer.ggml.bos_token_id", "bos_token");
    put_id(out, "tokenizer.ggml.eos_token_id", "eos_token");
    put_id(out, "tokenizer.ggml.unknown_token_id", "unk_token");
    put_id(out, "tokenizer.ggml.padding_token_id", "pad_token");
    put_around(out, "tokenizer.ggml.add_bos_token", "bos_token", "add_bos_token",
               around_ ? std::optional(around_->before()) : std::nullopt, bos_by_default);
    put_around(out, "tokenizer.ggml.add_eos_token", "eos_token", "add_eos_token",
               around_ ? std::optional(around_->after()) : std::nullopt, false);
    if (const auto chat = find_chat_template(path_))
      out.emplace_back("tokenizer.chat_template", *chat);
  }

 private:
  std::optional<int64_t> id_of(const char* name) const {
    std::string text = configured_token(path_, name);
    const auto otherwise = otherwise_.find(name);
    if (text.empty() && otherwise != otherwise_.end()) text = otherwise->second;
    if (auto id = tokens_.find(text)) return id;
    const std::string key = std::string(name) + "_id";
    Json value = config_.is_object() ? member(config_, key.c_str()) : Json();
    if (value.is_array() && !value.empty()) value = Json(value[0]);
    if (!value.is_number_integer()) return id_around(name);
    const auto id = value.get<int64_t>();
    if (id < 0 || static_cast<uint64_t>(id) >= tokens_.texts.size()) return std::nullopt;
    return id;
  }
  /// What tokenizer.json puts before (or behind) a text names the token where nothing else does.
  std::optional<int64_t> id_around(const char* name) const {
    if (!around_) return std::nullopt;
    const bool bos = std::string_view(name) == "bos_token",
               eos = std::string_view(name) == "eos_token";
    const std::vector<int32_t> ids = bos ? around_->before() : around_->after();
    if (bos && !ids.empty()) return ids.front();
    if (eos && !ids.empty()) return ids.back();
    return std::nullopt;
  }
  void put_id(GgufMetadata& out, const char* key, const char* name) const {
    if (const auto id = id_of(name)) out.emplace_back(key, static_cast<uint32_t>(*id));
  }
  /// tokenizer.json says it with its template; files without one in tokenizer_config.json.
  void put_around(GgufMetadata& out, const char* key, const char* name, const char* flag,
                  const std::optional<std::vector<int32_t>>& around, bool otherwise) const {
    const auto id = id_of(name);
    bool add = otherwise;
    if (around) {
      add = id && std::ranges::find(*around, *id) != around->end();
    } else if (tokenizer_config_.is_object()) {
      add = json_get_or<bool>(tokenizer_config_, flag, otherwise, "tokenizer_config.json");
    }
    out.emplace_back(key, add && id.has_value());
  }

  fs::path path_, folder_;
  const TokenTable& tokens_;
  Json config_, tokenizer_config_;
  std::optional<PostProcessor> around_;
  std::map<std::string, std::string> otherwise_;
};

std::vector<std::string> merges_of(const Json& model) {
  std::vector<std::string> merges;
  for (const Json& merge : member(model, "merges")) {
    if (merge.is_string()) {
      merges.push_back(merge.get<std::string>());
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
               merge[1].is_string()) {
      merges.push_back(merge[0].get<std::string>() + " " + merge[1].get<std::string>());
    } else {
      throw DataError("tokenizer.json has a merge that is not a pair of tokens");
    }
  }
  return merges;
}

template <class F> void for_each_of_vocab(const Json& model, F&& f) {
  const Json& vocab = member(model, "vocab");
  if (!vocab.is_object()) throw DataError("tokenizer.json has no vocabulary of tokens and ids");
  for (const auto& [text, id] : vocab.items()) {
    if (!id.is_number_integer())
      raise<DataError>("the id of '{}' is not an integer", excerpt(text));
    f(text, id.template get<int64_t>());
  }
}

GgufMetadata start(const char* model, const std::string& pre, TokenTable tokens, bool with_scores) {
  GgufMetadata out = {{"tokenizer.ggml.model", std::string(model)},
                      {"tokenizer.ggml.pre", pre},
                      {"tokenizer.ggml.tokens", GgufArray{std::move(tokens.texts)}}};
  if (with_scores) out.emplace_back("tokenizer.ggml.scores", GgufArray{std::move(tokens.scores)});
  out.emplace_back("tokenizer.ggml.token_type", GgufArray{std::move(tokens.types)});
  return out;
}

GgufMetadata from_byte_level(const fs::path& path, const Json& json, int64_t vocab_size) {
  const Json& model = member(json, "model");
  TokenTable tokens(vocab_size);
  for_each_of_vocab(model, [&](const std::string& text, int64_t id) {
    tokens.set(id, text, PieceType::kNormal, 0);
  });
  add_added_tokens(json, tokens);
  const std::string pre = find_gguf_pre(json);
  GgufMetadata out = start("gpt2", pre, tokens, /*with_scores=*/false);
  out.emplace_back("tokenizer.ggml.merges", GgufArray{merges_of(model)});
  SpecialTokens(path, json, tokens).put(out, /*bos_by_default=*/false);
  return out;
}

bool is_byte_token(const std::string& text) {
  return text.size() == 6 && text.starts_with("<0x") && text.ends_with(">");
}

/// Whether a space is put before the text; DataError for any other change of it.
bool has_prefix(const Json& json) {
  const Json& normalizer = member(json, "normalizer");
  const Json& pre_tokenizer = member(json, "pre_tokenizer");
  bool prefix = false, no_spaces = false;
  std::vector<Json> steps;
  if (type_of(normalizer) == "Sequence") {
    for (const Json& step : member(normalizer, "normalizers")) steps.push_back(step);
  } else if (!normalizer.is_null()) {
    steps.push_back(normalizer);
  }
  for (const Json& step : steps) {
    const bool prepend = type_of(step) == "Prepend" && step.value("prepend", "") == kSpaceMark;
    const bool replace = type_of(step) == "Replace" && step.value("content", "") == kSpaceMark;
    if (!prepend && !replace)
      raise<DataError>("GGUF cannot store the normalizer {}", excerpt(dump_json(step), 200));
    prefix = prefix || prepend;
    no_spaces = no_spaces || replace;
  }
  if (pre_tokenizer.is_null()) return prefix;
  // Gemma's tokenizers split where no space is left.
  if (no_spaces && type_of(pre_tokenizer) == "Split" &&
      member(pre_tokenizer, "pattern") == Json{{"String", " "}})
    return prefix;
  if (type_of(pre_tokenizer) != "Metaspace")
    raise<DataError>("GGUF cannot store the pre_tokenizer {} together with byte tokens",
                     excerpt(dump_json(pre_tokenizer), 200));
  if (pre_tokenizer.value("prepend_scheme", "always") == "never") return prefix;
  if (!prefix)
    log::shared_warning("the tokenizer puts a space only before texts that do not begin with one, "
                        "but llama.cpp puts one before every text");
  return true;
}

/// A tokenizer.json that was made of a SentencePiece model: merges have the order of scores.
GgufMetadata from_json_pieces(const fs::path& path, const Json& json, int64_t vocab_size) {
  const Json& model = member(json, "model");
  const bool prefix = has_prefix(json);
  const std::vector<std::string> merges = merges_of(model);
  std::map<std::string, float> scores;
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    std::string both = merges[rank];
    if (const size_t space = both.find(' '); space != std::string::npos) both.erase(space, 1);
    scores.emplace(std::move(both), -static_cast<float>(rank + 1));
  }
  const std::string unk = member(model, "unk_token").is_string()
                              ? model["unk_token"].get<std::string>()
                              : std::string();
  TokenTable tokens(vocab_size);
  for_each_of_vocab(model, [&](const std::string& text, int64_t id) {
    const auto score = scores.find(text);
    const PieceType type = text == unk           ? PieceType::kUnknown
                           : is_byte_token(text) ? PieceType::kByte
                                                 : PieceType::kNormal;
    const bool merged = type == PieceType::kNormal && score != scores.end();
    tokens.set(id, text, type, merged ? score->second : -static_cast<float>(merges.size() + 1));
  });
  add_added_tokens(json, tokens);
  GgufMetadata out = start("llama", "default", tokens, /*with_scores=*/true);
  out.emplace_back("tokenizer.ggml.add_space_prefix", prefix);
  SpecialTokens(path, json, tokens).put(out, /*bos_by_default=*/true);
  return out;
}

GgufMetadata from_sentencepiece(const fs::path& path, const fs::path& file, const Json& json,
                                int64_t vocab_size) {
  const SentencePieceModel model = read_sentencepiece(MappedFile(file).text());
  if (model.type != SentencePieceModel::Type::kBpe)
    raise<DataError>(
        "{} is not a BPE model of SentencePiece, which llama.cpp's tokenizer `llama` requires",
        file.string());
  if (!model.normalizer.escape_whitespaces || model.treat_whitespace_as_suffix)
    raise<DataError>("{} treats spaces in a way that GGUF cannot store", file.string());
  TokenTable tokens(vocab_size);
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    const auto& piece = model.pieces[id];
    tokens.set(static_cast<int64_t>(id), piece.text, piece.type, piece.score);
  }
  if (json.is_object()) add_added_tokens(json, tokens);
  GgufMetadata out = start("llama", "default", tokens, /*with_scores=*/true);
  out.emplace_back("tokenizer.ggml.add_space_prefix", model.normalizer.add_dummy_prefix);
  SpecialTokens special(path, json, tokens);
  special.fall_back("bos_token", model.bos_piece);
  special.fall_back("eos_token", model.eos_piece);
  special.put(out, /*bos_by_default=*/true);
  return out;
}

GgufMetadata tokenizer_part(const GgufMetadata& metadata) {
  GgufMetadata out;
  for (const auto& entry : metadata) {
    if (entry.first.starts_with("tokenizer.")) out.push_back(entry);
  }
  return out;
}

GgufMetadata from_gguf(const fs::path& file, int64_t vocab_size) {
  const GgufFile gguf(file);
  const auto* tokens = gguf.metadata().find_texts("tokenizer.ggml.tokens");
  if (tokens == nullptr || tokens->size() != static_cast<size_t>(vocab_size))
    raise<DataError>("{} has {} tokens, but the model has {}", file.string(),
                     tokens ? tokens->size() : 0, vocab_size);
  return tokenizer_part(gguf.metadata().all());
}

/// Under these limits a vocabulary size is one.
void check_size(int64_t vocab_size) {
  if (vocab_size < 1 || vocab_size > int64_t{1} << 24)
    raise<DataError>("a GGUF file cannot have {} tokens", vocab_size);
}

} // namespace

GgufMetadata gguf_tokenizer_metadata(const fs::path& path, int64_t vocab_size) {
  check_size(vocab_size);
  if (is_gguf(path)) return from_gguf(path, vocab_size);
  std::error_code ignored;
  const bool folder = fs::is_directory(path, ignored);
  fs::path json_file = folder ? path / "tokenizer.json" : path;
  if (!folder && path.extension() != ".json") json_file = path.parent_path() / "tokenizer.json";
  const fs::path model_file = folder ? path / "tokenizer.model" : path;
  const bool has_model = is_file(model_file) && model_file != json_file;
  const Json json = is_file(json_file) ? read_json(json_file) : Json();
  if (!json.is_object() && !has_model)
    raise<DataError>("{} contains neither tokenizer.json nor tokenizer.model, and the GGUF "
                     "metadata needs one of them",
                     path.string());
  const Json& model = json.is_object() ? member(json, "model") : json;
  const bool byte_level =
      type_of(model) == "BPE" && type_of(member(json, "decoder")) == "ByteLevel";
  if (byte_level && (folder || !has_model)) return from_byte_level(path, json, vocab_size);
  if (has_model) return from_sentencepiece(path, model_file, json, vocab_size);
  if (type_of(model) == "BPE" && model.value("byte_fallback", false))
    return from_json_pieces(path, json, vocab_size);
  raise<DataError>("{} is a tokenizer that GGUF files cannot contain: its model is {}",
                   json_file.string(), excerpt(type_of(model)));
}

} // namespace pentatron::data::tokenizer
