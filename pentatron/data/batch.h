/// Samples as named tensors, ready for one forward pass.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "pentatron/base/document_lengths.h"
#include "pentatron/data/dataset.h"

namespace pentatron::data {

/// How the tokens of b samples lie, sample-major: s of each, or fewer where padding was removed
/// (remove_padding.h); t in all.
struct StreamShape {
  int64_t sequence_length = 0; ///< s
  /// Where each sample begins among the tokens, from 0, and t [b + 1].
  std::vector<int64_t> sample_starts;
  std::vector<int64_t> position_ids; ///< [t], from 0 in each sample unless the dataset sets them
  bool positions_given = false;      ///< the dataset has set position_ids
  /// Boundaries of attention as offsets into the tokens, from 0 to t: the start of every sample and
  /// of every document that the dataset marks.
  std::vector<int64_t> cu_seqlens;
  int64_t max_seqlen = 0; ///< the longest piece between two of cu_seqlens
  bool packed = false;    ///< cu_seqlens has more pieces than samples
  /// The tokens of each sample that are not padding, as positions in the sample; empty if the batch
  /// has no padding.
  std::vector<StreamRange> real;
  int64_t real_tokens = 0; ///< tokens that are not padding
  /// Sum of the squares of the pieces without their padding: what attention scales with.
  int64_t squared_lengths = 0;
  DocumentLengths lengths = {}; ///< of the same pieces

  int64_t tokens() const { return sample_starts.back(); } ///< t
  bool operator==(const StreamShape&) const = default;
};

/// One of both has values: [t] of a field with a stream, else [b].
struct FieldValues {
  BatchField field;
  std::vector<int64_t> ints;
  std::vector<double> floats;
};

struct Batch {
  int64_t batch_size = 0;          ///< b
  std::vector<int64_t> sample_ids; ///< [b]
  std::map<std::string, StreamShape> streams;
  std::map<std::string, FieldValues> fields;
  std::map<std::string, int64_t> num_targets; ///< of each field that has a `none`: the other values

  const StreamShape& stream(const std::string& name) const { return streams.at(name); }
  const std::vector<int64_t>& ints(const std::string& name) const { return fields.at(name).ints; }
  const std::vector<double>& floats(const std::string& name) const {
    return fields.at(name).floats;
  }
};

/// The row of a batch that a dataset fills with one sample. Fields and streams go by their places
/// in Dataset::fields() and streams(). Fields hold their `fill`, positions count from 0, and all
/// tokens are real, unless the dataset writes otherwise.
class SampleView {
 public:
  /// [s] of the field's stream, or one value.
  std::span<int64_t> ints(size_t field) const;
  std::span<double> floats(size_t field) const;
  std::span<int64_t> position_ids(size_t stream) const; ///< [s]
  /// Marks `place`, in (0, s), as the start of a document, to which attention is limited. Call it
  /// in ascending order.
  void begin_document(size_t stream, int64_t place) const;
  /// Tokens outside of [begin, end), which is not empty, are padding.
  void set_real(size_t stream, StreamRange range) const;

 private:
  friend class BatchBuilder;
  struct Slot {
    FieldValues* values = nullptr;
    int64_t width = 1; ///< values of a sample
  };
  std::vector<Slot> fields_;
  std::vector<StreamShape*> streams_;
  int64_t row_ = 0;
  int64_t rows_ = 0;
};

/// A sample number of -1 stands for a sample of fill values.
Batch make_batch(const Dataset& dataset, std::span<const int64_t> sample_ids);

} // namespace pentatron::data
