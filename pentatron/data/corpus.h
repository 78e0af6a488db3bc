/// All documents of a dataset as one stream of tokens, each document followed by the tokenizer's
/// eod(), in the order of the files. Read and tokenized by background threads; the stream does not
/// depend on their number.
#pragma once

#include <exception>
#include <filesystem>
#include <memory>
#include <vector>

#include "pentatron/data/config.h"
#include "pentatron/data/document_reader.h"
#include "pentatron/data/input_report.h"
#include "pentatron/data/reading_progress.h"
#include "pentatron/data/token_buffer.h"
#include "pentatron/data/token_stream.h"
#include "pentatron/data/tokenizer.h"

namespace pentatron::data {

class Corpus final : public TokenStream {
 public:
  /// Finds the files of `config.path` (throws DataError if there are none) and starts to read them.
  /// With kSentences every sentence is encoded separately, after a space if white space separates
  /// it from the one before.
  enum class Cut : uint8_t { kDocuments, kSentences };
  Corpus(const DatasetConfig& config, std::shared_ptr<const Tokenizer> tokenizer,
         Cut cut = Cut::kDocuments);
  /// Stops reading early if need be.
  ~Corpus() override;
  Corpus(const Corpus&) = delete;
  Corpus& operator=(const Corpus&) = delete;

  /// Waits until everything is read, and shows progress on the console. Throws the DataError of the
  /// first file, in their order, that had one. The methods below wait too.
  void wait(const ReadingProgress::Options& options = {}) const;

  int64_t size_tokens() const override;
  int64_t num_documents() const override;
  /// Where document i begins in the stream; i = num_documents() gives size_tokens().
  int64_t document_begin(int64_t i) const override;
  /// Writes tokens [begin, begin + count) of the stream to `out`. Any number of threads at once.
  void copy(int64_t begin, int64_t count, int64_t* out) const override;
  /// Of a corpus with sentences: the tokens [begin, end) of sentence i, and the first sentence that
  /// begins at `token` or behind it.
  int64_t sentence_begin(int64_t i) const;
  int64_t sentence_end(int64_t i) const;
  int64_t first_sentence(int64_t token) const;
  const InputReport& report() const;
  std::vector<std::filesystem::path> files() const;
  /// The memory of the tokens.
  int64_t memory_bytes() const;

 private:
  struct FileTokens;
  struct State;
  static void work(State& state);
  static void read_file(State& state, size_t index);
  static std::exception_ptr explained(std::exception_ptr error, bool others);
  void watch(const ReadingProgress::Options& options) const;
  void finish() const;

  std::unique_ptr<State> state_;
};

/// The corpus of these files, as they are now, that threads of this process share; the tokenizer is
/// part of what tells corpora apart.
std::shared_ptr<const Corpus> shared_corpus(const DatasetConfig& config,
                                            const std::shared_ptr<const Tokenizer>& tokenizer,
                                            Corpus::Cut cut = Corpus::Cut::kDocuments);

} // namespace pentatron::data
