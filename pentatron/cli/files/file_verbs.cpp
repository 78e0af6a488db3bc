#include "pentatron/cli/files/file_verbs.h"

namespace pentatron::cli {

std::span<const Verb> file_verbs() {
  static constexpr std::string_view kInspect[] = {"samples", "blend"};
  static constexpr Verb kVerbs[] = {{"preprocess", add_preprocess},
                                    {"tokenize", add_tokenize},
                                    {"corpus", add_corpus},
                                    {"inspect", add_inspect, kInspect},
                                    {"plot", add_plot},
                                    {"completion", add_completion}};
  return kVerbs;
}

} // namespace pentatron::cli
