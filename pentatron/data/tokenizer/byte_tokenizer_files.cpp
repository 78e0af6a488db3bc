#include "pentatron/data/tokenizer/byte_tokenizer_files.h"

#include <algorithm>
#include <utility>

#include "pentatron/base/json.h"
#include "pentatron/data/tokenizer.h"
#include "pentatron/data/tokenizer/byte_level.h"
#include "pentatron/data/tokenizer/tokenizer_json.h"

namespace pentatron::data::tokenizer {

namespace {

constexpr const char* kEndOfText = "<|endoftext|>";

/// What is put around a text, and behind the second of two.
Json template_around(const Json& tokens, const ByteTokenizerExtras& added) {
  Json special = Json::object();
  const auto put = [&](const std::vector<int32_t>& ids, int type, Json& into) {
    for (const int32_t id : ids) {
      const std::string name = tokens[static_cast<size_t>(id - ByteTokenizer::kEod)]["content"];
      into.push_back(Json{{"SpecialToken", {{"id", name}, {"type_id", type}}}});
      special[name] = {{"id", name}, {"ids", Json::array({id})}, {"tokens", Json::array({name})}};
    }
  };
  Json single = Json::array();
  put(added.before, 0, single);
  single.push_back(Json{{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
  put(added.behind, 0, single);
  Json pair = single;
  pair.push_back(Json{{"Sequence", {{"id", "B"}, {"type_id", 1}}}});
  put(added.behind, 1, pair);
  return {{"type", "TemplateProcessing"},
          {"single", std::move(single)},
          {"pair", std::move(pair)},
          {"special_tokens", std::move(special)}};
}

} // namespace

std::string tokenizer_config_json(const std::string& eos) {
  return dump_json(Json{{"tokenizer_class", "PreTrainedTokenizerFast"},
                        {"bos_token", nullptr},
                        {"eos_token", eos},
                        {"clean_up_tokenization_spaces", false}},
                   2) +
         "\n";
}

std::map<std::string, std::string> byte_tokenizer_files(const ByteTokenizerExtras& added) {
  Json vocabulary = Json::object();
  for (int byte = 0; byte < 256; ++byte)
    vocabulary[bytes_to_characters(std::string(1, static_cast<char>(byte)))] = byte;
  Json tokens = Json::array({special_token(ByteTokenizer::kEod, kEndOfText)});
  for (const std::string& name : added.names)
    tokens.push_back(special_token(256 + std::ssize(tokens), name));
  Json json = byte_level_bpe(tokens, byte_level_step(false), byte_level_step(false),
                             std::move(vocabulary), Json::array());
  if (!added.before.empty() || !added.behind.empty())
    json["post_processor"] = template_around(tokens, added);
  Json config = parse_json(tokenizer_config_json(kEndOfText), "tokenizer_config.json");
  for (const auto& [role, name] : {std::pair{"pad_token", "[PAD]"},
                                   {"cls_token", "[CLS]"},
                                   {"sep_token", "[SEP]"},
                                   {"mask_token", "[MASK]"}})
    if (std::ranges::find(added.names, name) != added.names.end()) config[role] = name;
  return {{"tokenizer.json", dump_json(json, 1) + "\n"},
          {"tokenizer_config.json", dump_json(config, 2) + "\n"}};
}

} // namespace pentatron::data::tokenizer
