/// One file each.
#pragma once

#include "pentatron/cli/files/verbs.h"

namespace pentatron::cli {

void add_tokenize(CLI::App& program, Action& chosen);
void add_preprocess(CLI::App& program, Action& chosen);
void add_corpus(CLI::App& program, Action& chosen);
void add_inspect(CLI::App& program, Action& chosen);
void add_plot(CLI::App& program, Action& chosen);
void add_completion(CLI::App& program, Action& chosen);

} // namespace pentatron::cli
