#include "pentatron/data/batches_dataset.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <set>

#include <fmt/ranges.h>

#include "pentatron/base/error.h"
#include "pentatron/base/log.h"

namespace pentatron::data {

namespace {

constexpr std::string_view kTokensTensor = "tokens";
constexpr std::string_view kInputIdsTensor = "input_ids";

template <class To, class From> std::vector<To> converted(const SafeTensor& tensor) {
  std::vector<To> out(static_cast<size_t>(tensor.numel()));
  for (size_t i = 0; i < out.size(); ++i) {
    From value;
    std::memcpy(&value, tensor.data.data() + i * sizeof(From), sizeof(From));
    out[i] = static_cast<To>(value);
  }
  return out;
}

/// [rows, width + 1] without the first or the last column.
std::vector<int64_t> without_column(const std::vector<int64_t>& from, int64_t width, bool first) {
  std::vector<int64_t> out;
  for (auto row = from.begin(); row != from.end(); row += width + 1)
    out.insert(out.end(), row + (first ? 1 : 0), row + (first ? width + 1 : width));
  return out;
}

std::string tensor_name(const std::string& stream, std::string_view name) {
  return fmt::format("{}{}", stream == "decoder" ? "decoder_" : "", name);
}

} // namespace

class BatchesDataset::Reader {
 public:
  Reader(BatchesDataset& dataset, const std::filesystem::path& path, Form form)
      : d_(dataset), file_(path), outer_(form == Form::kSteps ? 2 : 1) {}

  void read() {
    d_.values_.resize(d_.fields_.size());
    refuse_other_inputs();
    split_tokens();
    for (size_t f = 0; f < d_.fields_.size(); ++f) {
      if (const SafeTensor* tensor = file_.find(d_.fields_[f].name); tensor != nullptr)
        take(f, *tensor);
    }
    for (size_t f = 0; f < d_.fields_.size(); ++f) {
      if (!has(f)) derive(f);
    }
    for (const BatchStream& stream : d_.streams_) d_.shapes_.push_back(shape_of(stream));
  }

 private:
  /// What changes the results of transformers' model must not be passed over.
  void refuse_other_inputs() const {
    std::set<std::string> known;
    for (const BatchField& field : d_.fields_) {
      known.insert(field.name);
      known.insert(tensor_name(field.stream, "attention_mask"));
      known.insert(tensor_name(field.stream, "position_ids"));
    }
    for (const char* input :
         {"attention_mask", "token_type_ids", "position_ids", "inputs_embeds", "head_mask",
          "decoder_input_ids", "decoder_attention_mask", "decoder_position_ids",
          "decoder_inputs_embeds", "encoder_hidden_states", "encoder_attention_mask"})
      if (file_.find(input) != nullptr && !known.contains(input))
        raise<DataError>("{} has a tensor {}, which the model does not read\n  try: a file without "
                         "{}",
                         d_.name_, input, input);
  }

  bool has(size_t f) const { return !d_.values_[f].ints.empty() || !d_.values_[f].floats.empty(); }
  int64_t rows() const { return d_.steps_ * d_.batch_size_; }

  std::string shape_text(bool stream, std::string_view last = "sequence") const {
    return fmt::format("[{}batch{}{}]", outer_ == 2 ? "steps, " : "", stream ? ", " : "",
                       stream ? last : "");
  }

  /// Checks the outer dimensions against those of the tensors before; returns the last one, 1 if
  /// there is none. A value per sample may have a last dimension of 1, which transformers flattens.
  int64_t check_shape(std::string_view name, const SafeTensor& tensor, bool stream,
                      std::string_view last = "sequence") {
    const size_t dims = outer_ + (stream ? 1 : 0);
    const bool column = !stream && tensor.shape.size() == dims + 1 && tensor.shape.back() == 1;
    if ((tensor.shape.size() != dims && !column) || tensor.numel() == 0) {
      raise<DataError>("{}: {} is {} [{}], not {}", d_.name_, name, name_of(tensor.dtype),
                       fmt::join(tensor.shape, ", "), shape_text(stream, last));
    }
    const int64_t steps = outer_ == 2 ? tensor.shape[0] : 1;
    const int64_t batch = tensor.shape[outer_ - 1];
    if (first_.empty()) {
      d_.steps_ = steps;
      d_.batch_size_ = batch;
      first_ = name;
    } else if (steps != d_.steps_ || batch != d_.batch_size_) {
      raise<DataError>("{}: {} [{}] and {} differ in the number of samples", d_.name_, name,
                       fmt::join(tensor.shape, ", "), first_);
    }
    return stream ? tensor.shape.back() : 1;
  }

  std::vector<int64_t> ints(std::string_view name, const SafeTensor& tensor) const {
    switch (tensor.dtype) {
    case SafeDtype::kI64:
      return converted<int64_t, int64_t>(tensor);
    case SafeDtype::kI32:
      return converted<int64_t, int32_t>(tensor);
    case SafeDtype::kU8:
    case SafeDtype::kBool:
      return converted<int64_t, uint8_t>(tensor);
    default:
      raise<DataError>("{}: {} is {}, not I64\n  try: {} as I64", d_.name_, name,
                       name_of(tensor.dtype), name);
    }
  }

  std::vector<double> floats(std::string_view name, const SafeTensor& tensor) const {
    if (tensor.dtype == SafeDtype::kF64) return converted<double, double>(tensor);
    if (tensor.dtype == SafeDtype::kF32) return converted<double, float>(tensor);
    raise<DataError>("{}: {} is {}, not F64 or F32\n  try: {} as F32", d_.name_, name,
                     name_of(tensor.dtype), name);
  }

  /// 1 for what counts, as in transformers: what is not zero, of any type.
  std::vector<int64_t> mask_of(std::string_view name, const SafeTensor& tensor) const {
    std::vector<int64_t> mask;
    if (tensor.dtype == SafeDtype::kBF16 || tensor.dtype == SafeDtype::kF16) {
      for (const int64_t bits : converted<int64_t, uint16_t>(tensor))
        mask.push_back((bits & 0x7fff) != 0); // but for the sign
      return mask;
    }
    if (tensor.dtype == SafeDtype::kF32 || tensor.dtype == SafeDtype::kF64) {
      for (const double value : floats(name, tensor)) mask.push_back(value != 0);
    } else {
      for (const int64_t value : ints(name, tensor)) mask.push_back(value != 0);
    }
    return mask;
  }

  /// Every tensor of a stream has its length, which the first one says.
  void add_stream(const std::string& name, int64_t length, std::string_view tensor) {
    for (const BatchStream& stream : d_.streams_) {
      if (stream.name != name) continue;
      if (stream.sequence_length == length) return;
      raise<DataError>("{}: {} has sequences of {} tokens, but other tensors of {}", d_.name_,
                       tensor, length, stream.sequence_length);
    }
    d_.streams_.push_back({name, length});
  }

  int64_t length_of(const std::string& stream) const {
    const auto found = std::ranges::find(d_.streams_, stream, &BatchStream::name);
    return found == d_.streams_.end() ? 0 : found->sequence_length;
  }

  void check_values(std::string_view name, const std::vector<int64_t>& values, int64_t width,
                    const BatchField& field) const {
    if (field.limit == 0) return;
    const auto bad = std::ranges::find_if(values, [&](int64_t value) {
      return (value < 0 || value >= field.limit) &&
             !(field.none && value == static_cast<int64_t>(*field.none));
    });
    if (bad == values.end()) return;
    const int64_t at = bad - values.begin(), row = at / width;
    std::vector<int64_t> place;
    if (outer_ == 2) place.push_back(row / d_.batch_size_);
    place.push_back(row % d_.batch_size_);
    if (!field.stream.empty()) place.push_back(at % width);
    const bool is_token = name.ends_with(kInputIdsTensor) || name == kTokensTensor ||
                          (field.none && !field.stream.empty());
    const std::string range = fmt::format("0 to {}", field.limit - 1);
    raise<DataError>("{}: {}[{}]={} is outside {}\n  try: {} from {}", d_.name_, name,
                     fmt::join(place, ", "), *bad,
                     is_token ? fmt::format("the vocabulary ({})", range) : range, name, range);
  }

  /// `tokens` as inputs and the labels one place further on.
  void split_tokens() {
    const auto labels = std::ranges::find_if(d_.fields_, &BatchField::next_token);
    const SafeTensor* tokens = file_.find(kTokensTensor);
    if (labels == d_.fields_.end() || tokens == nullptr || file_.find(kInputIdsTensor) != nullptr)
      return;
    const int64_t columns = check_shape(kTokensTensor, *tokens, true, "sequence + 1");
    if (columns < 2)
      raise<DataError>("{}: {} [{}] contains no sample with at least two tokens", d_.name_,
                       kTokensTensor, fmt::join(tokens->shape, ", "));
    const std::vector<int64_t> all = ints(kTokensTensor, *tokens);
    check_values(kTokensTensor, all, columns,
                 {.name = std::string(kTokensTensor), .limit = labels->limit});
    add_stream(labels->stream, columns - 1, kTokensTensor);
    for (size_t f = 0; f < d_.fields_.size(); ++f) {
      const BatchField& field = d_.fields_[f];
      if (field.next_token || field.name == kInputIdsTensor)
        d_.values_[f].ints = without_column(all, columns - 1, field.next_token);
    }
  }

  void take(size_t f, const SafeTensor& tensor) {
    const BatchField& field = d_.fields_[f];
    const int64_t width = check_shape(field.name, tensor, !field.stream.empty());
    if (!field.stream.empty()) add_stream(field.stream, width, field.name);
    if (field.type == FieldType::kFloat64) {
      d_.values_[f].floats = floats(field.name, tensor);
      return;
    }
    std::vector<int64_t> values = ints(field.name, tensor);
    check_values(field.name, values, width, field);
    if (field.next_token) move_left(values, width, static_cast<int64_t>(field.fill));
    d_.values_[f].ints = std::move(values);
  }

  static void move_left(std::vector<int64_t>& values, int64_t width, int64_t last) {
    for (auto row = values.begin(); row != values.end(); row += width) {
      std::copy(row + 1, row + width, row);
      row[width - 1] = last;
    }
  }

  /// A field that the file lacks.
  void derive(size_t f) {
    const BatchField& field = d_.fields_[f];
    Values& out = d_.values_[f];
    const auto find = [&](auto&& good) -> std::optional<size_t> {
      for (size_t i = 0; i < d_.fields_.size(); ++i) {
        if (i != f && d_.fields_[i].stream == field.stream && has(i) && good(d_.fields_[i]))
          return i;
      }
      return std::nullopt;
    };
    const int64_t width = field.stream.empty() ? 1 : length_of(field.stream);
    if (field.next_token) {
      if (const auto from = find([](const auto& other) { return other.name == kInputIdsTensor; })) {
        out.ints = d_.values_[*from].ints;
        return move_left(out.ints, width, static_cast<int64_t>(field.fill));
      }
    }
    if (field.start_token) {
      if (const auto labels = find([](const auto& other) { return other.none.has_value(); })) {
        out.ints = d_.values_[*labels].ints;
        return move_right(out.ints, width, d_.fields_[*labels], field);
      }
    }
    if (!field.absent || width == 0 || rows() == 0) missing(field);
    const auto n = static_cast<size_t>(rows() * width);
    if (field.type == FieldType::kFloat64) {
      out.floats.assign(n, *field.absent);
    } else {
      out.ints.assign(n, static_cast<int64_t>(*field.absent));
    }
  }

  /// Labels become the inputs `field`.
  static void move_right(std::vector<int64_t>& values, int64_t width, const BatchField& labels,
                         const BatchField& field) {
    std::ranges::replace(values, static_cast<int64_t>(*labels.none),
                         static_cast<int64_t>(field.fill));
    for (auto row = values.begin(); row != values.end(); row += width) {
      std::copy_backward(row, row + width - 1, row + width);
      *row = *field.start_token;
    }
  }

  [[noreturn]] void missing(const BatchField& field) const {
    std::vector<std::string> there;
    for (const auto& [name, tensor] : file_.tensors())
      there.push_back(fmt::format("{} [{}]", name, fmt::join(tensor.shape, ", ")));
    raise<DataError>("{} has no tensor {} {}, which the model reads; it has {}\n  try: a "
                     "file with the tensor {}",
                     d_.name_, field.name, shape_text(!field.stream.empty()),
                     there.empty() ? "none" : fmt::format("{}", fmt::join(there, ", ")),
                     field.name);
  }

  Shape shape_of(const BatchStream& stream) {
    Shape shape;
    const std::string mask = tensor_name(stream.name, "attention_mask");
    const std::string positions = tensor_name(stream.name, "position_ids");
    if (const SafeTensor* tensor = file_.find(mask); tensor != nullptr) {
      add_stream(stream.name, check_shape(mask, *tensor, true), mask);
      shape.real = ranges_of(mask, mask_of(mask, *tensor), stream.sequence_length);
    }
    if (const SafeTensor* tensor = file_.find(positions); tensor != nullptr) {
      add_stream(stream.name, check_shape(positions, *tensor, true), positions);
      shape.position_ids = ints(positions, *tensor);
      check_values(positions, shape.position_ids, stream.sequence_length,
                   {.name = positions, .limit = positions_of(stream)});
      if (file_.find(mask) == nullptr && predicts_next(stream.name) &&
          has_jumps(shape.position_ids, stream.sequence_length))
        log::shared_warning(
            "{}: {} does not rise by 1 everywhere and there is no {}: each row is taken as one "
            "sequence, as transformers takes it with its default use_cache=True (with "
            "use_cache=False a new sequence begins at each such place); an {} of ones means the "
            "same to both",
            d_.name_, positions, mask, mask);
    }
    return shape;
  }

  bool predicts_next(const std::string& stream) const {
    return std::ranges::any_of(d_.fields_, [&](const BatchField& field) {
      return field.next_token && field.stream == stream;
    });
  }

  static bool has_jumps(const std::vector<int64_t>& positions, int64_t width) {
    for (size_t i = 1; i < positions.size(); ++i)
      if (i % static_cast<size_t>(width) != 0 && positions[i] != positions[i - 1] + 1) return true;
    return false;
  }

  /// Position ids of the stream are below. In training, positions that are not rows of a table are
  /// computed as far as its samples are long.
  int64_t positions_of(const BatchStream& stream) const {
    int64_t limit = 0;
    for (const BatchField& field : d_.fields_)
      if (field.stream == stream.name && field.positions > 0)
        limit = limit > 0 ? std::min(limit, field.positions) : field.positions;
    return limit > 0 ? limit : outer_ == 2 ? stream.sequence_length : int64_t{1} << 31;
  }

  std::vector<StreamRange> ranges_of(const std::string& name, const std::vector<int64_t>& mask,
                                     int64_t width) const {
    std::vector<StreamRange> ranges;
    for (auto row = mask.begin(); row != mask.end(); row += width) {
      const auto begin = std::find(row, row + width, 1);
      const auto end = std::find(begin, row + width, 0);
      const auto n = static_cast<int64_t>(ranges.size());
      if (begin == row + width) {
        ranges.push_back(without_tokens(name, n));
        continue;
      }
      if (std::find(end, row + width, 1) != row + width)
        raise<DataError>("{}: row {} of step {} of {} is not one run of ones with zeros around it, "
                         "which is the only kind of mask that is supported\n  try: {} and the "
                         "other tensors with the padding of that row at its end",
                         d_.name_, n % d_.batch_size_, n / d_.batch_size_, name, name);
      ranges.push_back({begin - row, end - row});
    }
    return ranges;
  }

  /// Of a row that is padding alone. No loss depends on it, so one token may stand for it, and
  /// attention has something to look at.
  StreamRange without_tokens(const std::string& name, int64_t n) const {
    for (size_t f = 0; f < d_.fields_.size(); ++f) {
      if (d_.fields_[f].none && has_targets(f, n))
        raise<DataError>("{}: row {} of step {} of {} has only zeros, but {} of that row count in "
                         "the loss\n  try: {} of {} in that row",
                         d_.name_, n % d_.batch_size_, n / d_.batch_size_, name, d_.fields_[f].name,
                         d_.fields_[f].name, *d_.fields_[f].none);
    }
    return {0, 1};
  }

  bool has_targets(size_t f, int64_t row) const {
    const double none = *d_.fields_[f].none;
    const auto counts = [&](const auto& values) {
      const auto width = std::ssize(values) / rows();
      return std::any_of(values.begin() + row * width, values.begin() + (row + 1) * width,
                         [&](auto value) {
                           const auto number = static_cast<double>(value);
                           return std::isnan(none) ? !std::isnan(number) : number != none;
                         });
    };
    return counts(d_.values_[f].ints) || counts(d_.values_[f].floats);
  }

  BatchesDataset& d_;
  SafetensorsFile file_;
  size_t outer_; ///< dimensions before the sequence
  std::string first_;
};

BatchesDataset::BatchesDataset(const std::filesystem::path& path, std::vector<BatchField> fields,
                               Form form)
    : name_(path.string()), fields_(std::move(fields)) {
  Reader(*this, path, form).read();
}

void BatchesDataset::sample(int64_t n, const SampleView& view) const {
  if (n < 0 || n >= *size())
    raise<DataError>("{} has {} samples, so sample {} does not exist", name_, *size(), n + 1);
  for (size_t f = 0; f < fields_.size(); ++f) {
    if (fields_[f].type == FieldType::kInt64) {
      const std::span<int64_t> row = view.ints(f);
      std::copy_n(values_[f].ints.begin() + n * std::ssize(row), row.size(), row.begin());
    } else {
      const std::span<double> row = view.floats(f);
      std::copy_n(values_[f].floats.begin() + n * std::ssize(row), row.size(), row.begin());
    }
  }
  for (size_t s = 0; s < streams_.size(); ++s) {
    if (!shapes_[s].real.empty()) view.set_real(s, shapes_[s].real[static_cast<size_t>(n)]);
    if (!shapes_[s].position_ids.empty()) {
      const std::span<int64_t> row = view.position_ids(s);
      std::copy_n(shapes_[s].position_ids.begin() + n * std::ssize(row), row.size(), row.begin());
    }
  }
}

std::vector<int64_t> lengths_in_batches(const std::filesystem::path& path,
                                        const std::vector<BatchField>& fields,
                                        const std::vector<std::string>& streams) {
  const SafetensorsFile file(path);
  const auto width = [&](std::string_view name) -> int64_t {
    const SafeTensor* const tensor = file.find(name);
    return tensor != nullptr && tensor->shape.size() == 3 ? tensor->shape.back() : 0;
  };
  std::vector<int64_t> lengths(streams.size(), 0);
  for (size_t i = 0; i < streams.size(); ++i)
    for (const BatchField& field : fields) {
      if (field.stream != streams[i] || lengths[i] > 0) continue;
      lengths[i] = width(field.name);
      if (lengths[i] == 0 && field.next_token && width(kTokensTensor) > 1)
        lengths[i] = width(kTokensTensor) - 1;
    }
  return lengths;
}

Batch read_batch(const std::filesystem::path& path, const std::vector<BatchField>& fields) {
  const BatchesDataset dataset(path, fields, BatchesDataset::Form::kOneBatch);
  std::vector<int64_t> rows(static_cast<size_t>(dataset.batch_size()));
  std::iota(rows.begin(), rows.end(), int64_t{0});
  return make_batch(dataset, rows);
}

} // namespace pentatron::data
