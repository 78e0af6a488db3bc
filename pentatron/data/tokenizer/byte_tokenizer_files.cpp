#include "pentatron/data/tokenizer/byte_tokenizer_files.h"

#include "pentatron/base/json.h"
#include "pentatron/data/tokenizer.h"
#include "pentatron/data/tokenizer/byte_level.h"
#include "pentatron/data/tokenizer/tokenizer_json.h"

namespace pentatron::data::tokenizer {

namespace {
constexpr const char* kEndOfText = "<|endoftext|>";
}

std::string tokenizer_config_json(const std::string& eos) {
  return dump_json(Json{{"tokenizer_class", "PreTrainedTokenizerFast"},
                        {"bos_token", nullptr},
                        {"eos_token", eos},
                        {"clean_up_tokenization_spaces", false}},
                   2) +
         "\n";
}

std::map<std::string, std::string> byte_tokenizer_files() {
  Json vocabulary = Json::object();
  for (int byte = 0; byte < 256; ++byte)
    vocabulary[bytes_to_characters(std::string(1, static_cast<char>(byte)))] = byte;
  const Json json = byte_level_bpe(Json::array({special_token(ByteTokenizer::kEod, kEndOfText)}),
                                   byte_level_step(false), byte_level_step(false),
                                   std::move(vocabulary), Json::array());
  return {{"tokenizer.json", dump_json(json, 1) + "\n"},
          {"tokenizer_config.json", tokenizer_config_json(kEndOfText)}};
}

} // namespace pentatron::data::tokenizer
