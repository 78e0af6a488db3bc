/// Examples for the tests of fine-tuning.
#pragma once

#include <string>

#include "pentatron/base/json.h"

namespace pentatron::data {

/// A conversation of one question as a line of JSON.
inline std::string talk(const std::string& question, const std::string& answer) {
  return OrderedJson{
      {"messages",
       {{{"role", "user"}, {"content", question}}, {{"role", "assistant"}, {"content", answer}}}}}
      .dump();
}

} // namespace pentatron::data
