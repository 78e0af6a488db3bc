/// The named tensors of a batch. A dataset declares those that it gives, a model those that it
/// reads; nothing between them knows a name. Names are those of transformers' forward().
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace pentatron::data {

/// Sequences of one length: "tokens" of a model with one kind of sequence; "encoder" and "decoder"
/// of T5. Its attention mask and position ids are part of its StreamShape, not fields.
struct BatchStream {
  std::string name;
  int64_t sequence_length = 0;
  bool operator==(const BatchStream&) const = default;
};

enum class FieldType : uint8_t { kInt64, kFloat64 };

struct BatchField {
  std::string name;
  std::string stream = "tokens"; ///< a value per token of this stream; "": one per sample
  FieldType type = FieldType::kInt64;
  double fill = 0; ///< what padding has, and samples that fill up the last batch
  /// For labels: the value that marks a missing target, often -100; NaN where labels are numbers.
  /// `fill` has this value too.
  std::optional<double> none = {};

  // For readers of files, from the model:
  int64_t limit = 0;                 ///< values are in [0, limit) or `none`; 0: any value
  int64_t positions = 0;             ///< the stream's position ids are below; 0: any
  std::optional<double> absent = {}; ///< stands in for a field that the file lacks
  /// Labels that are the tokens one place further on. A file holds them in the place of the token
  /// itself, as transformers takes them; without them they follow from input_ids.
  bool next_token = false;
  /// Inputs of a decoder. If the file lacks them they are the labels of their stream moved one
  /// place on, behind this token, with `fill` where none counts.
  std::optional<int64_t> start_token = {};
};

/// A field that a batch gets from another one: its values `places` further on (shifted_fields.h).
struct ShiftedField {
  std::string name;
  std::string source; ///< a field with a value per token, of integers; "": positions of `stream`
  int64_t places = 1;
  std::string stream = "tokens";
};

/// Labels where -100 means no target.
inline BatchField label_field(std::string stream = "tokens", std::string name = "labels") {
  return {.name = std::move(name), .stream = std::move(stream), .fill = -100, .none = -100};
}

/// Of a model that predicts the next token.
inline std::vector<BatchField> next_token_fields(int64_t vocab_size = 0) {
  std::vector<BatchField> fields{{.name = "input_ids"}, label_field()};
  for (BatchField& field : fields) field.limit = vocab_size;
  fields[1].next_token = true;
  return fields;
}

} // namespace pentatron::data
