/// Requests to a model for the documents of a task.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pentatron/evaluation/tasks/documents.h"

namespace pentatron::evaluation {

/// What Python's f-strings and str() write.
std::string to_text(const Document& value);

/// A text that the model scores after a context, scores as a whole, or continues.
struct Request {
  enum class Kind : uint8_t { kLogLikelihood, kRolling, kGenerate };
  Kind kind = Kind::kLogLikelihood;
  std::string context;
  std::string continuation; ///< of kRolling: the text
  /// The likelihood without the context, for acc_mutual_info.
  bool unconditional = false;
};

/// A document with its requests, in order of its choices.
struct Item {
  Document document;
  std::vector<Request> requests;
  std::vector<std::string> choices; ///< of multiple choice
  Document target;                  ///< as doc_to_target, or the number of doc_to_text, gives it
  int64_t words = 0, bytes = 0;     ///< of rolling: what the likelihood is divided by
};

struct RequestOptions {
  int64_t limit = 0;                  ///< at most so many documents; 0: all
  std::optional<int64_t> num_fewshot; ///< in place of the task's, unless that is 0
  uint64_t seed = 1234;               ///< of examples that are drawn
};

/// How many examples the task shows.
int64_t shown_examples(const Task& task, const RequestOptions& options);

/// Reads the task's documents and builds its prompts, as lm-eval 0.4 does. Throws DataError.
std::vector<Item> make_items(const Task& task, const RequestOptions& options);

} // namespace pentatron::evaluation
