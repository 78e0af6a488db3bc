#include "pentatron/data/tokenizer/byte_tokenizer_files.h"

#include "pentatron/base/json.h"
#include "pentatron/data/tokenizer.h"
#include "pentatron/data/tokenizer/byte_level.h"

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
  const Json byte_level = {{"type", "ByteLevel"},
                           {"add_prefix_space", false},
                           {"trim_offsets", true},
                           {"use_regex", false}};
  const Json json = {{"version", "1.0"},
                     {"truncation", nullptr},
                     {"padding", nullptr},
                     {"added_tokens", Json::array({{{"id", ByteTokenizer::kEod},
                                                    {"content", kEndOfText},
                                                    {"single_word", false},
                                                    {"lstrip", false},
                                                    {"rstrip", false},
                                                    {"normalized", false},
                                                    {"special", true}}})},
                     {"normalizer", nullptr},
                     {"pre_tokenizer", byte_level},
                     {"post_processor", nullptr},
                     {"decoder", byte_level},
                     {"model",
                      {{"type", "BPE"},
                       {"dropout", nullptr},
                       {"unk_token", nullptr},
                       {"continuing_subword_prefix", nullptr},
                       {"end_of_word_suffix", nullptr},
                       {"fuse_unk", false},
                       {"byte_fallback", false},
                       {"ignore_merges", false},
                       {"vocab", std::move(vocabulary)},
                       {"merges", Json::array()}}}};
  return {{"tokenizer.json", dump_json(json, 1) + "\n"},
          {"tokenizer_config.json", tokenizer_config_json(kEndOfText)}};
}

} // namespace pentatron::data::tokenizer
