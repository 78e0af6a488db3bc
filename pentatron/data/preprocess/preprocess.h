/// From files of text to indexed datasets: PREFIX_KEY_document.{bin,idx} for each JSON key, or
/// PREFIX_KEY_sentence.{bin,idx}.
///
/// One thread reads and cuts the input into blocks of whole documents, workers parse and tokenize
/// them, the caller's thread writes them in order. So the output does not depend on the number of
/// workers, and memory not on the size of the input.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "pentatron/data/input_report.h"
#include "pentatron/data/tokenizer.h"

namespace pentatron::data {

struct PreprocessProgress {
  int64_t disk_bytes = 0;  ///< bytes read, counted as on the disk
  int64_t total_bytes = 0; ///< of all files; 0 if that cannot be known
  int64_t text_bytes = 0;
  int64_t documents = 0;
  int64_t tokens = 0;
  int64_t bad = 0;
  double seconds = 0;             ///< since this call began
  int64_t resumed_text_bytes = 0; ///< done by an earlier one
};

/// "31.2 % | 85.3 MB/s | 21.1K docs/s | 19.8M tokens/s | ETA 2m 03s".
std::string to_string(const PreprocessProgress& progress);

struct PreprocessOptions {
  std::vector<std::string> inputs; ///< files, folders, "-" for JSON lines on standard input
  std::shared_ptr<const Tokenizer> tokenizer;
  std::string output; ///< the prefix
  std::vector<std::string> json_keys = {"text"};
  bool append_eod = false;
  /// Each sentence (split_sentences.h) is a sequence of its document, encoded by itself. As
  /// Megatron's: an end of the document belongs to its last sentence.
  bool split_sentences = false;
  int64_t workers = 1;
  OnBadInput on_bad_input = OnBadInput::kSkip;
  int64_t max_document_bytes = int64_t{64} << 20;
  bool overwrite = false; ///< replaces outputs of an earlier call
  /// Bytes of text between two saves of the progress, from which a killed call resumes.
  int64_t save_bytes = int64_t{512} << 20;
  std::function<void(const PreprocessProgress&)> progress = {}; ///< about once a second
};

struct PreprocessResult {
  InputReport report{OnBadInput::kSkip};
  std::vector<std::string> prefixes; ///< one for each key
  std::filesystem::path skip_list;   ///< OUTPUT_skipped.jsonl; empty: nothing was left out
  bool resumed = false;
};

/// Writes the corpora, or resumes where a call with the same options was killed. A text file is one
/// document, and so is each line or array element of a JSON file; a document without tokens is kept
/// as an empty document. What is left out is listed in OUTPUT_skipped.jsonl. Throws DataError for
/// input that cannot be read (under OnBadInput::kError: for bad lines too), for input without a
/// single document (an existing corpus stays), and if OUTPUT.partial is of another call;
/// ConfigError if an output exists, unless the call resumes one that was putting it in place. What
/// was done before a file that cannot be read stays in OUTPUT.partial, for a call that resumes.
PreprocessResult preprocess(const PreprocessOptions& options);

} // namespace pentatron::data
