/// Examples to fine-tune on, of which only the answers are learned.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "pentatron/data/dataset.h"
#include "pentatron/data/input_files.h"
#include "pentatron/data/reading_progress.h"
#include "pentatron/data/sft/taught_text.h"

namespace pentatron::data {

/// The examples of some files as tokens in memory, in their order.
class TaughtTexts {
 public:
  struct Options {
    std::string option = "dataset.path"; ///< the key that the paths come from
    RenderChat render = {};
    int64_t vocab_size = 0;      ///< token ids are below it
    int64_t sequence_length = 0; ///< longer examples are cut at their end
    /// Of a model with an encoder, which reads the prompt: longer answers are cut at their end.
    std::optional<int64_t> target_length = {};
    int32_t end_token = -1; ///< of one: behind prompts and answers
    bool warns = true;      ///< of tools that are not learned
    ReadingProgress::Options reading = {};
  };
  /// Reads JSON lines and arrays of objects (taught_text.h), each also as .gz or .zst, and Parquet
  /// files with columns of their names. `config` determines how bad lines are handled. Skips
  /// examples without a token that contributes to the loss. Throws DataError for other files, and
  /// if no example is left.
  TaughtTexts(const std::vector<std::string>& paths, const DatasetConfig& config,
              const Tokenizer& tokenizer, const Options& options);

  int64_t size() const { return static_cast<int64_t>(begins_.size()) - 1; }
  int64_t length(int64_t i) const { return begins_[at(i + 1)] - begins_[at(i)]; }
  const int32_t* tokens(int64_t i) const { return tokens_.data() + begins_[at(i)]; }
  const uint8_t* taught(int64_t i) const { return taught_.data() + begins_[at(i)]; }

  int64_t num_tokens(int64_t begin, int64_t end) const {
    return begins_[at(end)] - begins_[at(begin)];
  }
  int64_t num_taught() const { return num_taught_; }
  /// Counts of examples that are not complete, such as "1 example cut to 513 tokens"; no example
  /// counts twice.
  std::vector<std::string> incomplete() const;
  const InputReport& report() const { return report_; }
  const std::vector<std::filesystem::path>& files() const { return files_; }

 private:
  static size_t at(int64_t i) { return static_cast<size_t>(i); }
  void read(const InputFile& input, const DatasetConfig& config, const Tokenizer& tokenizer,
            const Options& options, ReadingProgress& progress);
  void add(TaughtText text, const Options& options);
  void add_pair(TaughtText text, const Options& options);
  void append(const TaughtText& text);
  /// Why no example is left, as an error.
  [[noreturn]] void refuse_empty(const std::string& paths, const Options& options) const;

  int64_t sequence_length_;
  std::optional<int64_t> target_length_;
  std::vector<int32_t> tokens_;
  std::vector<uint8_t> taught_;
  std::vector<int64_t> begins_{0};
  int64_t tools_left_out_ = 0; ///< examples with tools that no template writes
  int64_t num_taught_ = 0, cut_ = 0, late_ = 0, unanswered_ = 0;
  int64_t unweighted_ = 0; ///< of the unanswered: all their answers have "weight": 0
  int64_t needed_ = 0; ///< of the examples left out: the shortest sequence with something to learn
  InputReport report_;
  std::vector<std::filesystem::path> files_;
};

/// The order of samples of different lengths: sample n is a pure function of (options, n).
class LengthOrder {
 public:
  struct Options {
    uint64_t seed = 0;
    std::string name = "train";
    /// Of blocks of kBlock samples in random order, the longest come first. Otherwise every order
    /// is as likely.
    bool grouped = false;
    bool ends = false; ///< after one epoch
  };
  static constexpr int64_t kBlock = 1024;
  LengthOrder(std::vector<int64_t> lengths, const Options& options);

  int64_t samples() const { return std::ssize(lengths_); }
  bool ends() const { return options_.ends; }
  /// Index of the n-th sample in the order. Throws DataError if n is past the end.
  size_t at(int64_t n) const;

 private:
  std::vector<int64_t> lengths_;
  Options options_;
};

/// Fields `input_ids` and `labels`. Each example is a separate document: its positions start at 0,
/// and attention does not cross documents. Labels are the next tokens where these contribute to the
/// loss. Padding is at the end.
class SftDataset final : public Dataset {
 public:
  struct Options {
    int64_t sequence_length = 0;
    LengthOrder::Options order = {};
    bool pack = true; ///< examples follow one another in a sample while they fit
    int64_t pad_token = 0;
  };
  /// Of the examples [range.begin, range.end), which is not empty.
  SftDataset(std::shared_ptr<const TaughtTexts> texts, StreamRange range, const Options& options);

  const std::vector<BatchStream>& streams() const override { return streams_; }
  const std::vector<BatchField>& fields() const override { return fields_; }
  std::optional<int64_t> size() const override;
  int64_t samples_per_epoch() const override { return order_.samples(); }
  void sample(int64_t n, const SampleView& view) const override;

 private:
  /// Fills firsts_ and returns the tokens of each sample.
  std::vector<int64_t> pack(StreamRange range);

  std::shared_ptr<const TaughtTexts> texts_;
  Options options_;
  std::vector<int64_t> firsts_; ///< the first example of each sample, and the end
  LengthOrder order_;
  std::vector<BatchStream> streams_;
  std::vector<BatchField> fields_;
};

/// For a model with an encoder, an example a sample: the fields of T5Dataset.
class TaughtPairs final : public Dataset {
 public:
  struct Options {
    int64_t input_length = 0, target_length = 0;
    LengthOrder::Options order = {};
    int64_t pad_token = 0;
    int64_t start_token = 0; ///< the first input of the decoder
  };
  /// Of the examples [range.begin, range.end), which is not empty, read with a target_length.
  TaughtPairs(std::shared_ptr<const TaughtTexts> texts, StreamRange range, const Options& options);

  const std::vector<BatchStream>& streams() const override { return streams_; }
  const std::vector<BatchField>& fields() const override { return fields_; }
  std::optional<int64_t> size() const override;
  int64_t samples_per_epoch() const override { return order_.samples(); }
  void sample(int64_t n, const SampleView& view) const override;

 private:
  std::shared_ptr<const TaughtTexts> texts_;
  Options options_;
  int64_t first_;
  LengthOrder order_;
  std::vector<BatchStream> streams_;
  std::vector<BatchField> fields_;
};

/// Tokens of an answer, for a model with an encoder.
int64_t sft_target_length(const DatasetConfig& config, int64_t sequence_length);

/// The parts of dataset.type=sft: from the files of dataset.path, which dataset.split cuts, or from
/// files for each part. Throws DataError or ConfigError.
Datasets open_sft(const DatasetConfig& config, const DatasetContext& context);

} // namespace pentatron::data
