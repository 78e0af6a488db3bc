#include "pentatron/data/tokenizer/gguf_pre.h"

#include <algorithm>
#include <optional>

#include "pentatron/base/error.h"
#include "pentatron/base/log.h"
#include "pentatron/base/text.h"
#include "pentatron/data/tokenizer/splitter.h"
#include "pentatron/data/tokenizer/tokenizer_json.h"

namespace pentatron::data::tokenizer {

namespace {

const std::string kGpt2(kGpt2Pattern);
const std::string kLlama3(kCl100kPattern);
const std::string kQwen2(kQwen2Pattern);
const std::string kGpt4o(kO200kPattern);
const std::string kDigit = R"(\p{N})";
const std::string kQwen35 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const std::string kTekken =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const std::string kDeepSeek3 =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
/// DeepSeek LLM lists the letters with case of an older Unicode: these came later or lie apart.
const std::string kDeepSeekWord =
    R"(\s?(?:(?![\x{560}-\x{588}\x{10C7}\x{10CD}-\x{10FF}\x{1C80}-\x{1C88}\x{2D00}-\x{2D2D}\x{A790}-\x{A7FA}\x{AB30}-\x{AB68}\x{10570}-\x{105BC}\x{16E40}-\x{16E7F}\x{1D400}-\x{1DF1E}])[\p{Lu}\p{Ll}\p{Lt}])+)";
const std::string kDeepSeekSigns =
    R"(\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+)";
const std::string kCjk = R"([\x{4E00}-\x{9FA5}\x{0800}-\x{4E00}\x{AC00}-\x{D7FF}]+)";
const std::string kBloom =
    R"( ?[^(\s|.,!?\x{2026}\x{3002}\x{FF0C}\x{3001}\x{0964}\x{06D4}\x{060C})]+)";
const std::string kBailing =
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)";
const std::string kSeedCoder =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+)";

struct Row {
  std::vector<std::string_view> names; ///< the first is written
  GgufPre pre;
};

/// The first row with equal patterns is the one that is written.
const std::vector<Row>& rows() {
  static const std::vector<Row> table = {
      {{"gpt-2", "phi-2", "jina-es", "jina-de", "gigachat", "jina-v2-es", "jina-v2-de", "a.x-4.0",
        "mellum", "modern-bert", "exaone4", "mpt", "olmo", "jais", "trillion", "granite-docling"},
       {.patterns = {kGpt2}}},
      {{"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2",
        "jina-v5-nano"},
       {.patterns = {kLlama3}, .ignore_merges = true, .add_bos = true}},
      {{"dbrx", "smaug-bpe", "chatglm-bpe", "glm4"}, {.patterns = {kLlama3}}},
      {{"qwen2"}, {.patterns = {kQwen2}, .nfc = true}},
      {{"deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "stablelm2", "hunyuan", "solar-open",
        "grok-2"},
       {.patterns = {kQwen2}}},
      {{"qwen35"}, {.patterns = {kQwen35}, .nfc = true}},
      {{"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b",
        "mellum2"},
       {.patterns = {kDigit, kGpt2}}},
      {{"deepseek-v3", "hunyuan-dense", "joyai-llm"},
       {.patterns = {R"(\p{N}{1,3})", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", kDeepSeek3}}},
      {{"deepseek-llm"},
       {.patterns = {R"([\r\n])", kDeepSeekWord, kDeepSeekSigns, R"(\s+$)", kCjk, R"(\p{N}+)"}}},
      {{"deepseek-coder"},
       {.patterns = {R"([\r\n])", R"(\s?\p{L}+)", R"(\s?\p{P}+)", kCjk, kDigit}}},
      {{"tekken"}, {.patterns = {kTekken}, .ignore_merges = true, .add_bos = true}},
      {{"gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"}, {.patterns = {kGpt4o}}},
      {{"falcon"}, {.patterns = {R"([\p{P}\$\+<=>\^~\|`]+)", kGpt2, "[0-9][0-9][0-9]"}}},
      {{"bloom", "poro-chat", "gpt3-finnish"}, {.patterns = {kBloom}}},
      {{"viking"}, {.patterns = {kBloom, kDigit}}},
      {{"bailingmoe", "bailingmoe2", "llada-moe"}, {.patterns = {kBailing}}},
      {{"seed-coder"}, {.patterns = {kSeedCoder}}},
      {{"default"},
       {.patterns = {R"([\p{P}\$\+<=>\^~\|]+)", kGpt2, R"(\p{N}+)", "[0-9][0-9][0-9]"}}}};
  return table;
}

Json isolate(const std::string& pattern) {
  return {{"type", "Split"},
          {"pattern", {{"Regex", pattern}}},
          {"behavior", "Isolated"},
          {"invert", false}};
}

/// A step of "pre_tokenizer" as patterns; false if it does anything else.
bool add_patterns(const Json& step, std::vector<std::string>& patterns) {
  if (!step.is_object()) return false;
  const std::string type = step.value("type", "");
  if (type == "Sequence") {
    const auto steps = step.find("pretokenizers");
    if (steps == step.end() || !steps->is_array()) return false;
    return std::ranges::all_of(*steps, [&](const Json& s) { return add_patterns(s, patterns); });
  }
  if (type == "ByteLevel") {
    if (step.value("use_regex", true)) patterns.push_back(kGpt2);
    return !step.value("add_prefix_space", true);
  }
  if (type == "Digits") {
    patterns.emplace_back(step.value("individual_digits", false) ? kDigit : R"(\p{N}+)");
    return true;
  }
  if (type != "Split" || !step.contains("pattern") || !step["pattern"].is_object()) return false;
  const std::string behavior = step.value("behavior", "");
  // Without what is between matches: these patterns leave nothing between them.
  const bool isolates = (behavior == "Isolated" && !step.value("invert", false)) ||
                        (behavior == "Removed" && step.value("invert", false));
  const Json regex = step["pattern"].value("Regex", Json());
  if (!isolates || !regex.is_string()) return false;
  patterns.push_back(regex.get<std::string>());
  return true;
}

/// Whether "normalizer" is nothing (false) or NFC (true); none for anything else.
std::optional<bool> is_nfc(const Json& normalizer) {
  if (normalizer.is_null()) return false;
  if (!normalizer.is_object()) return std::nullopt;
  if (normalizer.value("type", "") == "NFC") return true;
  if (normalizer.value("type", "") != "Sequence") return std::nullopt;
  bool nfc = false;
  for (const Json& step : normalizer.value("normalizers", Json::array())) {
    const auto one = is_nfc(step);
    if (!one) return std::nullopt;
    nfc = nfc || *one;
  }
  return nfc;
}

} // namespace

GgufPre gguf_pre(std::string_view name) {
  for (const Row& row : rows()) {
    if (std::ranges::find(row.names, name) != row.names.end()) return row.pre;
  }
  raise<DataError>("tokenizer.ggml.pre={} is not known, so text cannot be split into words",
                   excerpt(name));
}

Json gguf_pre_tokenizer(const GgufPre& pre) {
  Json steps = Json::array();
  for (const std::string& pattern : pre.patterns) steps.push_back(isolate(pattern));
  steps.push_back(byte_level_step(false));
  return {{"type", "Sequence"}, {"pretokenizers", std::move(steps)}};
}

std::string find_gguf_pre(const Json& tokenizer_json) {
  std::vector<std::string> patterns;
  const Json pre_tokenizer = tokenizer_json.value("pre_tokenizer", Json());
  const auto nfc = is_nfc(tokenizer_json.value("normalizer", Json()));
  if (!nfc) throw DataError("GGUF cannot store the normalizer of this tokenizer.json");
  const bool ignore_merges =
      tokenizer_json.contains("model") && tokenizer_json["model"].value("ignore_merges", false);
  const Row* closest = nullptr;
  if (add_patterns(pre_tokenizer, patterns)) {
    // Without merges every byte is a token, however the text is cut into words.
    const Json model = tokenizer_json.value("model", Json::object());
    if (patterns.empty() && !*nfc && model.value("merges", Json()) == Json::array()) return "gpt-2";
    for (const Row& row : rows()) {
      if (row.pre.patterns != patterns || row.pre.ignore_merges != ignore_merges) continue;
      if (closest == nullptr || row.pre.nfc == *nfc) closest = &row;
      if (row.pre.nfc == *nfc) break;
    }
  }
  if (closest == nullptr)
    raise<DataError>("llama.cpp has no name for the pre_tokenizer {} with ignore_merges={}",
                     excerpt(dump_json(pre_tokenizer), 400), ignore_merges);
  if (*nfc)
    log::shared_warning("the tokenizer normalizes text to NFC, but llama.cpp does not: letters "
                        "with combining accents become other tokens there");
  return std::string(closest->names.front());
}

} // namespace pentatron::data::tokenizer
