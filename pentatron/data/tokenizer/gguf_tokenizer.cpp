#include "pentatron/data/tokenizer/gguf_tokenizer.h"

#include <algorithm>
#include <limits>
#include <tuple>
#include <unordered_map>

#include "pentatron/base/error.h"
#include "pentatron/base/format.h"
#include "pentatron/base/log.h"
#include "pentatron/base/text.h"
#include "pentatron/data/tokenizer/component.h"
#include "pentatron/data/tokenizer/gguf_pre.h"
#include "pentatron/data/tokenizer/sentencepiece.h"
#include "pentatron/data/tokenizer/tokenizer_json.h"
#include "pentatron/data/tokenizer/unicode.h"

namespace pentatron::data::tokenizer {

namespace {

constexpr size_t kMaxTokens = size_t{1} << 22;
constexpr size_t kMaxPieceBytes = 1024; ///< merges are looked for at every place of a piece

struct Vocab {
  std::vector<std::string> tokens;
  std::vector<PieceType> types; ///< one a token
  std::vector<double> scores;   ///< one a token, or none
};

/// The numbers of llama.cpp are SentencePiece's, and 0 stands for nothing in particular.
std::vector<PieceType> read_types(const GgufKeys& metadata, size_t count) {
  const auto numbers = metadata.find_integers("tokenizer.ggml.token_type");
  std::vector<PieceType> types(count, PieceType::kNormal);
  if (!numbers) return types;
  if (numbers->size() != count)
    raise<DataError>("{} has {}, but {}", metadata.origin(),
                     counted(static_cast<int64_t>(count), "token"),
                     counted(std::ssize(*numbers), "token type"));
  for (size_t i = 0; i < count; ++i) {
    const int64_t type = (*numbers)[i];
    if (type < 0 || type > 6)
      raise<DataError>("token {} of {} has the type {}, which is not known", i, metadata.origin(),
                       type);
    if (type != 0) types[i] = static_cast<PieceType>(type);
  }
  return types;
}

Vocab read_vocab(const GgufKeys& metadata) {
  const auto* tokens = metadata.find_texts("tokenizer.ggml.tokens");
  if (tokens == nullptr || tokens->empty())
    raise<DataError>("{} has no tokens in its metadata", metadata.origin());
  if (tokens->size() > kMaxTokens)
    raise<DataError>("{} has {} tokens, more than the limit of {}", metadata.origin(),
                     tokens->size(), kMaxTokens);
  Vocab vocab{.tokens = *tokens, .types = read_types(metadata, tokens->size()), .scores = {}};
  for (size_t i = 0; i < vocab.tokens.size(); ++i) {
    if (!is_utf8(vocab.tokens[i]))
      raise<DataError>("token {} of {} is not UTF-8", i, metadata.origin());
  }
  if (auto scores = metadata.find_numbers("tokenizer.ggml.scores")) {
    if (scores->size() != tokens->size())
      raise<DataError>("{} has {}, but {}", metadata.origin(),
                       counted(std::ssize(*tokens), "token"),
                       counted(std::ssize(*scores), "score"));
    if (std::ranges::any_of(*scores, [](double s) { return !(s > -1e30 && s < 1e30); }))
      raise<DataError>("{} has a score that is not a number", metadata.origin());
    vocab.scores = std::move(*scores);
  }
  return vocab;
}

std::optional<int64_t> find_id(const GgufKeys& metadata, const char* key, size_t count) {
  const auto id = metadata.find_integer(key);
  if (!id || *id == std::numeric_limits<uint32_t>::max()) return std::nullopt;
  if (*id < 0 || static_cast<uint64_t>(*id) >= count)
    raise<DataError>("{}={} of {} is not one of its {} tokens", key, *id, metadata.origin(), count);
  return id;
}

Json added_tokens(const Vocab& vocab) {
  Json list = Json::array();
  for (size_t id = 0; id < vocab.tokens.size(); ++id) {
    const PieceType type = vocab.types[id];
    const bool special = type == PieceType::kControl || type == PieceType::kUnknown;
    if (!special && type != PieceType::kUserDefined) continue;
    if (vocab.tokens[id].empty()) continue;
    list.push_back({{"id", id},
                    {"content", vocab.tokens[id]},
                    {"single_word", false},
                    {"lstrip", false},
                    {"rstrip", false},
                    {"normalized", false},
                    {"special", special}});
  }
  return list;
}

Json vocabulary(const Vocab& vocab) {
  Json json = Json::object();
  for (size_t id = 0; id < vocab.tokens.size(); ++id) json[vocab.tokens[id]] = id;
  return json;
}

/// <s> before and </s> behind a text, where the file wants them.
Json post_processor(const GgufKeys& metadata, const Vocab& vocab, bool add_bos) {
  Json before = Json::array(), after = Json::array(), special = Json::object();
  const auto put = [&](bool add, const char* key, Json& list) {
    const auto id = find_id(metadata, key, vocab.tokens.size());
    if (!add || !id) return;
    const std::string& token = vocab.tokens[static_cast<size_t>(*id)];
    list.push_back({{"SpecialToken", {{"id", token}, {"type_id", 0}}}});
    special[token] = {{"id", token}, {"ids", Json::array({*id})}, {"tokens", {token}}};
  };
  put(metadata.find_bool("tokenizer.ggml.add_bos_token").value_or(add_bos),
      "tokenizer.ggml.bos_token_id", before);
  put(metadata.find_bool("tokenizer.ggml.add_eos_token").value_or(false),
      "tokenizer.ggml.eos_token_id", after);
  if (special.empty()) return nullptr;
  const auto add_text = [&](Json list, const char* name, int type) {
    list.insert(list.end(), before.begin(), before.end());
    list.push_back({{"Sequence", {{"id", name}, {"type_id", type}}}});
    list.insert(list.end(), after.begin(), after.end());
    return list;
  };
  const Json single = add_text(Json::array(), "A", 0);
  return {{"type", "TemplateProcessing"},
          {"single", single},
          {"pair", add_text(single, "B", 1)},
          {"special_tokens", std::move(special)}};
}

Json byte_level(const GgufKeys& metadata, const Vocab& vocab) {
  const auto name = metadata.find_text("tokenizer.ggml.pre");
  if (!name)
    log::shared_warning("{} does not define how text is split into words (tokenizer.ggml.pre); "
                        "using llama.cpp's default",
                        metadata.origin());
  const GgufPre pre = gguf_pre(name.value_or("default"));
  const auto* merges = metadata.find_texts("tokenizer.ggml.merges");
  if (merges == nullptr)
    raise<DataError>("{} has no 'tokenizer.ggml.merges', which a byte-level tokenizer needs",
                     metadata.origin());
  for (const std::string& merge : *merges) {
    if (!is_utf8(merge)) raise<DataError>("{} has a merge that is not UTF-8", metadata.origin());
  }
  return {{"version", "1.0"},
          {"model",
           {{"type", "BPE"},
            {"vocab", vocabulary(vocab)},
            {"merges", *merges},
            {"ignore_merges", pre.ignore_merges}}},
          {"normalizer", pre.nfc ? Json{{"type", "NFC"}} : Json()},
          {"pre_tokenizer", gguf_pre_tokenizer(pre)},
          {"post_processor", post_processor(metadata, vocab, pre.add_bos)},
          {"decoder", byte_level_step(false)},
          {"added_tokens", added_tokens(vocab)}};
}

/// The pairs that make each token, best score first: what Hugging Face makes of a SentencePiece
/// model (SentencePieceExtractor).
Json merges_by_score(const Vocab& vocab) {
  std::unordered_map<std::string_view, int64_t> ids;
  for (size_t id = 0; id < vocab.tokens.size(); ++id) {
    if (vocab.types[id] == PieceType::kNormal) ids[vocab.tokens[id]] = static_cast<int64_t>(id);
  }
  struct Merge {
    double score;
    int64_t left, right;
    size_t left_size, right_size; // characters
  };
  const auto characters = [](std::string_view text) {
    return static_cast<size_t>(
        std::ranges::count_if(text, [](char c) { return (c & 0xC0) != 0x80; }));
  };
  std::vector<Merge> merges;
  for (size_t id = 0; id < vocab.tokens.size(); ++id) {
    if (vocab.types[id] != PieceType::kNormal) continue;
    const std::string_view token = vocab.tokens[id];
    if (token.size() > kMaxPieceBytes)
      raise<DataError>("token {} has {} bytes, but a piece of SentencePiece has at most {}", id,
                       token.size(), kMaxPieceBytes);
    const size_t first = merges.size();
    for (size_t at = 0; at < token.size();) {
      at += utf8_length(token[at]);
      const auto left = ids.find(token.substr(0, at)), right = ids.find(token.substr(at));
      if (at >= token.size() || left == ids.end() || right == ids.end()) continue;
      merges.push_back({vocab.scores[id], left->second, right->second, characters(left->first),
                        characters(right->first)});
    }
    std::sort(merges.begin() + static_cast<std::ptrdiff_t>(first), merges.end(),
              [](const Merge& a, const Merge& b) {
                return std::tie(a.left, a.right) < std::tie(b.left, b.right);
              });
  }
  std::ranges::stable_sort(merges, [](const Merge& a, const Merge& b) {
    return std::tie(a.score, a.left_size, a.right_size) >
           std::tie(b.score, b.left_size, b.right_size);
  });
  Json list = Json::array();
  for (const Merge& m : merges)
    list.push_back(
        {vocab.tokens[static_cast<size_t>(m.left)], vocab.tokens[static_cast<size_t>(m.right)]});
  return list;
}

Json sentencepiece(const GgufKeys& metadata, const Vocab& vocab) {
  Json model = {{"type", "BPE"}, {"vocab", vocabulary(vocab)}};
  if (!vocab.scores.empty()) {
    model["merges"] = merges_by_score(vocab);
  } else if (const auto* merges = metadata.find_texts("tokenizer.ggml.merges")) {
    model["merges"] = *merges;
  } else {
    raise<DataError>("{} has neither scores nor merges of its tokens", metadata.origin());
  }
  model["byte_fallback"] = std::ranges::find(vocab.types, PieceType::kByte) != vocab.types.end();
  const auto unk = find_id(metadata, "tokenizer.ggml.unknown_token_id", vocab.tokens.size());
  const auto by_type = std::ranges::find(vocab.types, PieceType::kUnknown);
  if (unk || by_type != vocab.types.end()) {
    model["unk_token"] =
        vocab.tokens[static_cast<size_t>(unk.value_or(by_type - vocab.types.begin()))];
    model["fuse_unk"] = true;
  }
  const bool prefix = metadata.find_bool("tokenizer.ggml.add_space_prefix").value_or(true);
  Json normalizers = Json::array();
  if (prefix) normalizers.push_back({{"type", "Prepend"}, {"prepend", kSpaceMark}});
  normalizers.push_back(
      {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", kSpaceMark}});
  Json decoders = {{{"type", "Replace"}, {"pattern", {{"String", kSpaceMark}}}, {"content", " "}},
                   {{"type", "ByteFallback"}},
                   {{"type", "Fuse"}}};
  if (prefix) decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  return {{"version", "1.0"},
          {"model", std::move(model)},
          {"normalizer", {{"type", "Sequence"}, {"normalizers", std::move(normalizers)}}},
          {"post_processor", post_processor(metadata, vocab, /*add_bos=*/true)},
          {"decoder", {{"type", "Sequence"}, {"decoders", std::move(decoders)}}},
          {"added_tokens", added_tokens(vocab)}};
}

} // namespace

Json gguf_as_tokenizer_json(const GgufKeys& metadata) {
  if (!has_tokenizer(metadata)) raise<DataError>("{} contains no tokenizer", metadata.origin());
  const auto model = metadata.find_text("tokenizer.ggml.model");
  if (*model != "gpt2" && *model != "llama")
    raise<DataError>("tokenizer.ggml.model={} of {} is not supported, only gpt2 and llama are",
                     excerpt(*model), metadata.origin());
  const Vocab vocab = read_vocab(metadata);
  return *model == "gpt2" ? byte_level(metadata, vocab) : sentencepiece(metadata, vocab);
}

std::map<std::string, std::string> gguf_tokenizer_files(const GgufKeys& metadata) {
  Json config = {{"tokenizer_class", "PreTrainedTokenizerFast"}};
  for (const char* name : {"bos_token", "eos_token", "unk_token", "pad_token"})
    if (const std::string token = gguf_named_token(metadata, name); !token.empty())
      config[name] = token;
  if (const auto text = gguf_chat_template(metadata)) config["chat_template"] = *text;
  return {{"tokenizer.json", dump_json(gguf_as_tokenizer_json(metadata), 2) + "\n"},
          {"tokenizer_config.json", dump_json(config, 2) + "\n"}};
}

std::shared_ptr<const Tokenizer> make_gguf_tokenizer(const GgufKeys& metadata,
                                                     const std::string& eod_token) {
  return make_hugging_face(
      gguf_as_tokenizer_json(metadata),
      {.name = "gguf",
       .eod = {.required = eod_token, .likely = gguf_named_token(metadata, "eos_token")}});
}

std::optional<std::string> gguf_chat_template(const GgufKeys& metadata) {
  return metadata.find_text("tokenizer.chat_template");
}

std::string gguf_named_token(const GgufKeys& metadata, const std::string& name) {
  const char* key = name == "bos_token"   ? "tokenizer.ggml.bos_token_id"
                    : name == "eos_token" ? "tokenizer.ggml.eos_token_id"
                    : name == "unk_token" ? "tokenizer.ggml.unknown_token_id"
                    : name == "pad_token" ? "tokenizer.ggml.padding_token_id"
                                          : "";
  const auto* tokens = metadata.find_texts("tokenizer.ggml.tokens");
  if (*key == '\0' || tokens == nullptr) return {};
  const auto id = find_id(metadata, key, tokens->size());
  return id ? (*tokens)[static_cast<size_t>(*id)] : std::string();
}

} // namespace pentatron::data::tokenizer
