/// A model with a tokenizer of letters: what tests of commands need, not a good model.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include "pentatron/base/json.h"

namespace pentatron::test {

/// Characters 33 to 126 are the tokens 0 to 93, and <e>, the end of a document, is 94.
inline void add_letter_tokenizer(const std::filesystem::path& model) {
  std::ofstream(model / "tokenizer_config.json")
      << Json{{"eos_token", "<e>"},
              {"chat_template",
               "{% for m in messages %}({{ m['role'][0] }}){{ m['content'] }}{% endfor %}(a)"}};
  Json vocabulary = Json::object();
  for (int i = 33; i < 127; ++i) vocabulary[std::string(1, static_cast<char>(i))] = i - 33;
  std::ofstream(model / "tokenizer.json")
      << Json{{"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", Json::array()}}},
              {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
              {"decoder", {{"type", "ByteLevel"}}},
              {"added_tokens", Json::array({{{"id", 94}, {"content", "<e>"}, {"special", true}}})}};
}

/// Writes a Hugging Face folder with random weights and a tokenizer of letters. `family`: a folder
/// of tests/data/hf_tiny.
inline void make_letter_model(const std::filesystem::path& model,
                              const std::string& family = "llama") {
  namespace fs = std::filesystem;
  fs::copy(fs::path(PENTATRON_TEST_DATA) / "hf_tiny" / family, model);
  add_letter_tokenizer(model);
}

} // namespace pentatron::test
