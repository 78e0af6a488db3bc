/// Samples by number: sample n is a pure function of (dataset, data seed, n), whatever the run's
/// length or layout.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "pentatron/base/philox.h"
#include "pentatron/data/config.h"
#include "pentatron/data/corpus.h"
#include "pentatron/data/field.h"
#include "pentatron/data/input_report.h"
#include "pentatron/data/sft/chat_text.h"
#include "pentatron/data/token_stream.h"
#include "pentatron/data/tokenizer.h"

namespace pentatron {
class MachineStore;
}

namespace pentatron::data {

class SampleView;

/// Samples as the fields of a batch (batch.h). Immutable once built: any number of threads may ask
/// for samples.
class Dataset {
 public:
  virtual ~Dataset() = default;

  virtual const std::vector<BatchStream>& streams() const = 0;
  virtual const std::vector<BatchField>& fields() const = 0;
  /// The number of samples; none if they never end.
  virtual std::optional<int64_t> size() const { return std::nullopt; }
  /// After how many samples all data has been seen once more; 0 if that has no meaning.
  virtual int64_t samples_per_epoch() const { return 0; }
  /// Fills `view` with sample n >= 0. Throws DataError for n >= size().
  virtual void sample(int64_t n, const SampleView& view) const = 0;

  /// Of the first stream.
  int64_t sequence_length() const { return streams().front().sequence_length; }
  /// Throws Error (internal) if the stream does not exist.
  int64_t sequence_length(std::string_view stream) const;
};

/// Samples as tokens, which TokenSamples makes a Dataset. Immutable once built, as that is.
class TokenDataset {
 public:
  virtual ~TokenDataset() = default;

  virtual int64_t sequence_length() const = 0;
  /// The number of samples; none if they never end.
  virtual std::optional<int64_t> size() const { return std::nullopt; }
  /// After how many samples every token has been seen once more; 0 if that has no meaning.
  virtual int64_t samples_per_epoch() const { return 0; }
  /// Writes the sequence_length() + 1 tokens of sample n >= 0 to `tokens`. Throws DataError for n
  /// >= size().
  virtual void sample(int64_t n, int64_t* tokens) const = 0;
  /// Like sample(), and sets loss_mask[i] to 1 if label i contributes to the loss, else to 0.
  virtual void sample_with_mask(int64_t n, int64_t* tokens, uint8_t* loss_mask) const;
};

enum class Part : uint8_t { kTrain, kValidation, kTest };
inline constexpr std::array<Part, 3> kAllParts{Part::kTrain, Part::kValidation, Part::kTest};
constexpr std::string_view name_of(Part part) {
  return part == Part::kTrain ? "train" : part == Part::kValidation ? "validation" : "test";
}

struct Split {
  StreamRange train;
  StreamRange validation;
  StreamRange test;
  const StreamRange& operator[](Part part) const {
    return part == Part::kTrain ? train : part == Part::kValidation ? validation : test;
  }
};

/// Cuts the corpus by the shares in `split` ("95,5,0": training, validation, test; missing ones are
/// 0), in the order of the documents. A boundary moves to the nearest document boundary if that
/// changes neither neighbouring part by more than a tenth; otherwise it splits a document. Throws
/// ConfigError if `split` is not of this form.
Split split_corpus(const TokenStream& corpus, const std::string& split);
/// Like split_corpus(), for `count` samples.
Split split_samples(int64_t count, const std::string& split);

/// Windows of sequence_length + 1 tokens, each beginning where the one before ended (one token is
/// shared: the last label is the next first input), in a new random order every epoch. What is left
/// at the end of the range is not used. Throws ConfigError if the range is shorter than one window.
class TextDataset final : public TokenDataset {
 public:
  struct Options {
    int64_t sequence_length = 0;
    uint64_t seed = 0;
    std::string name = "train"; ///< for messages, and part of the key of the order
  };
  TextDataset(std::shared_ptr<const TokenStream> corpus, StreamRange range, const Options& options);

  int64_t sequence_length() const override { return options_.sequence_length; }
  int64_t samples_per_epoch() const override { return windows_; }
  void sample(int64_t n, int64_t* tokens) const override;
  /// Where sample n begins in the corpus.
  int64_t sample_begin(int64_t n) const;

 private:
  std::shared_ptr<const TokenStream> corpus_;
  StreamRange range_;
  Options options_;
  int64_t windows_ = 0;
};

/// Uniformly random tokens, for measuring without data.
class MockDataset final : public TokenDataset {
 public:
  MockDataset(int64_t vocab_size, int64_t sequence_length, uint64_t seed)
      : vocab_size_(vocab_size), sequence_length_(sequence_length), stream_(seed, "mock tokens") {}
  int64_t sequence_length() const override { return sequence_length_; }
  void sample(int64_t n, int64_t* tokens) const override;

 private:
  int64_t vocab_size_;
  int64_t sequence_length_;
  Stream stream_;
};

/// The tokenizer that `config` names; it has a token that ends documents. Throws ConfigError if the
/// keys do not fit together, DataError for a file that cannot be read.
std::shared_ptr<const Tokenizer> make_tokenizer(const TokenizerConfig& config);
/// The same, which threads of this process share as long as its files stay as they are.
std::shared_ptr<const Tokenizer> shared_tokenizer(const TokenizerConfig& config);

/// The files that make the tokenizer of `config` what it is; none for one that needs no file.
/// Throws DataError if they are missing.
std::vector<TokenizerFile> tokenizer_files(const TokenizerConfig& config);
/// The files that lie with them, see tokenizer::files_beside_tokenizer().
std::vector<TokenizerFile> files_beside_tokenizer(const TokenizerConfig& config);

struct NamedDataset {
  std::string name;
  std::shared_ptr<const Dataset> dataset;
};

/// The parts of a dataset as tokens, see Datasets.
struct TokenDatasets {
  struct Named {
    std::string name;
    std::shared_ptr<const TokenDataset> dataset;
  };
  std::shared_ptr<const TokenDataset> train, validation, test;
  std::vector<Named> validation_sets;
};

/// What a part of a dataset was cut from; zeros if nothing is known of documents.
struct PartSize {
  int64_t documents = 0;
  int64_t tokens = 0;
};
/// The documents that begin in `range`, and its tokens.
PartSize size_of_part(const TokenStream& corpus, StreamRange range);

/// The parts of a dataset; one that has less than a sample is null.
struct Datasets {
  std::shared_ptr<const Dataset> train;
  std::shared_ptr<const Dataset> validation;
  /// Under dataset.multiple_validation_sets each of them; `validation` is then the first.
  std::vector<NamedDataset> validation_sets;
  std::shared_ptr<const Dataset> test;
  std::shared_ptr<const Corpus> corpus; ///< of type text, else null
  std::optional<InputReport> report;    ///< of files of text or records: what was left out
  Split split;                          ///< of the corpus
  PartSize train_size, validation_size, test_size;
  int64_t file_batch_size =
      0; ///< of type batches: the global batch size that takes a step of the file a step
  std::vector<std::string> label_names;     ///< of type classification: of classes; empty: numbers
  std::vector<std::filesystem::path> files; ///< that were read
  std::string summary; ///< what was read, for the log: one line, more if something was skipped

  std::shared_ptr<const Dataset>& operator[](Part part) {
    return part == Part::kTrain ? train : part == Part::kValidation ? validation : test;
  }
  PartSize& size(Part part) {
    return part == Part::kTrain        ? train_size
           : part == Part::kValidation ? validation_size
                                       : test_size;
  }
};

struct DatasetContext {
  int64_t sequence_length = 0; ///< of the first stream; 0 takes that of the file for type batches
  int64_t vocab_size = 0;      ///< the model's
  /// What the model reads; empty: what a model reads that predicts the next token.
  std::vector<BatchField> fields = {};
  std::shared_ptr<const Tokenizer> tokenizer = {};
  /// The model's names of classes, by their numbers; empty: numbers, or names that the training
  /// data decide.
  std::vector<std::string> label_names = {};
  /// Of type sft: what writes conversations; empty: ChatML.
  RenderChat render_chat = {};
  /// How many samples the run takes of each part, which dataset.order=megatron depends on; none:
  /// as many as an epoch has.
  std::optional<int64_t> train_samples = {};
  std::optional<int64_t> validation_samples = {};
  std::optional<int64_t> test_samples = {};
  bool writes_nothing = false; ///< to dataset.data_cache_path, which is only read
  /// Of the processes of this machine that open the same; null: they share no order of samples, or
  /// that of dataset.data_cache_path.
  MachineStore* store = nullptr;
  ReadingProgress::Options reading = {};

  /// The first token of a decoder's input, from the first field that defines it.
  std::optional<int64_t> start_token() const {
    for (const BatchField& field : fields)
      if (field.start_token) return field.start_token;
    return std::nullopt;
  }
};

/// Opens what `config` names and waits until it is read. Throws DataError or ConfigError as
/// described above, and ConfigError if sequence length or vocabulary do not fit, or, before it
/// reads anything, if a dataset of this type has no field that the model reads.
Datasets open_datasets(const DatasetConfig& config, const DatasetContext& context);

} // namespace pentatron::data
