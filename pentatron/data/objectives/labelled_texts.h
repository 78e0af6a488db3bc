/// Texts, or pairs of texts, with a label each, as token ids in memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "pentatron/data/config.h"
#include "pentatron/data/field.h"
#include "pentatron/data/input_report.h"
#include "pentatron/data/reading_progress.h"
#include "pentatron/data/token_buffer.h"
#include "pentatron/data/tokenizer.h"

namespace pentatron::data {

/// The records of JSON and Parquet files, in the order of the files. Immutable once built.
class LabelledTexts {
 public:
  struct Options {
    /// One text or two as a sequence. Used by several threads at once.
    std::function<EncodedPair(std::string_view, std::optional<std::string_view>)> encode;
    int64_t vocab_size = 0; ///< token ids are below it
    FieldType label_type = FieldType::kInt64;
    int64_t num_classes = 0; ///< of kInt64: labels are below it; 0: any
    /// Of kInt64: labels are names of this list, or numbers; empty: numbers, or names that the
    /// files decide.
    std::vector<std::string> class_names = {};
    /// The key of the data that decided the names, which then have no numbers; empty: the model.
    std::string names_from;
    std::string option = "dataset.path"; ///< the key that `paths` comes from
    ReadingProgress::Options reading = {};
  };
  /// Reads `paths` with the keys and rules of `config`, which also determines how bad lines are
  /// handled. Throws DataError for a label that is not a class of `options`, and if there are no
  /// samples.
  LabelledTexts(const std::vector<std::string>& paths, const DatasetConfig& config,
                const Options& options);

  int64_t size() const { return file_begins_.back(); }
  int64_t length(int64_t i) const;
  /// Writes the length(i) tokens of sample i and the type of each.
  void copy(int64_t i, int64_t* tokens, int64_t* types) const;
  double label(int64_t i) const;                        ///< a class is a whole number
  int64_t num_tokens(int64_t begin, int64_t end) const; ///< of samples [begin, end)

  /// In the order of the classes; empty if labels are numbers.
  const std::vector<std::string>& class_names() const { return class_names_; }
  const InputReport& report() const { return report_; }
  const std::vector<std::filesystem::path>& files() const { return files_; }

 private:
  class Reader;
  struct File {
    explicit File(int64_t vocab_size) : tokens(vocab_size) {}
    TokenBuffer tokens, types{1};
    std::vector<int64_t> begins{0};       ///< of each sample, one more than samples
    std::vector<double> labels;           ///< numbers of classes, or of `names`
    std::vector<std::string> names;       ///< classes in the order of their first sample
    std::string first_number, first_name; ///< where labels of both kinds stand, for messages
    InputReport report;
  };
  struct Place {
    const File* file = nullptr;
    size_t sample = 0;
  };
  Place find(int64_t i) const;
  void name_classes(const Options& options);

  std::vector<File> read_;
  std::vector<int64_t> file_begins_{0};
  std::vector<std::string> class_names_;
  InputReport report_;
  std::vector<std::filesystem::path> files_;
};

} // namespace pentatron::data
