#include "pentatron/data/remove_padding.h"

#include <algorithm>
#include <cmath>

#include "pentatron/base/error.h"

namespace pentatron::data {

namespace {

bool is_target(const FieldValues& values, size_t i) {
  const double none = *values.field.none;
  if (values.field.type == FieldType::kInt64) return values.ints[i] != static_cast<int64_t>(none);
  return std::isnan(none) ? !std::isnan(values.floats[i]) : values.floats[i] != none;
}

/// How many tokens of each sample stay.
std::vector<int64_t> lengths_left(const Batch& batch, const std::string& stream, int64_t multiple,
                                  int64_t of_sample) {
  const StreamShape& shape = batch.stream(stream);
  const int64_t s = shape.sequence_length;
  std::vector<int64_t> lengths;
  int64_t sum = 0;
  for (size_t row = 0; row < shape.real.size(); ++row) {
    int64_t length = shape.real[row].end;
    for (const auto& [name, values] : batch.fields) {
      if (values.field.stream != stream || !values.field.none) continue;
      int64_t end = s;
      const size_t first = row * static_cast<size_t>(s);
      while (end > length && !is_target(values, first + static_cast<size_t>(end - 1))) --end;
      length = end;
    }
    if (of_sample > 1)
      length = std::min(s, std::max<int64_t>(1, (length + of_sample - 1) / of_sample) * of_sample);
    lengths.push_back(length);
    sum += length;
  }
  int64_t missing = (multiple - sum % multiple) % multiple;
  for (int64_t& length : lengths) {
    const int64_t more = std::min(missing, s - length);
    length += more;
    missing -= more;
  }
  return lengths;
}

/// The first `lengths[row]` values of each row of s.
template <class T>
void cut_rows(std::vector<T>& values, int64_t s, const std::vector<int64_t>& lengths) {
  auto out = values.begin();
  for (size_t row = 0; row < lengths.size(); ++row)
    out = std::copy_n(values.begin() + static_cast<int64_t>(row) * s, lengths[row], out);
  values.erase(out, values.end());
}

/// Pieces without tokens are gone.
void cut_pieces(StreamShape& shape, const std::vector<int64_t>& lengths) {
  const int64_t s = shape.sequence_length;
  std::vector<int64_t> cuts;
  for (const int64_t cut : shape.cu_seqlens) {
    const int64_t row = std::min(cut / s, std::ssize(lengths) - 1);
    const int64_t place = shape.sample_starts[static_cast<size_t>(row)] +
                          std::min(cut - row * s, lengths[static_cast<size_t>(row)]);
    if (cuts.empty() || place > cuts.back()) cuts.push_back(place);
  }
  shape.cu_seqlens = std::move(cuts);
  shape.max_seqlen = 0;
  for (size_t i = 1; i < shape.cu_seqlens.size(); ++i)
    shape.max_seqlen = std::max(shape.max_seqlen, shape.cu_seqlens[i] - shape.cu_seqlens[i - 1]);
  shape.packed = shape.cu_seqlens.size() > shape.sample_starts.size();
}

} // namespace

void remove_padding(Batch& batch, int64_t multiple, int64_t of_sample) {
  for (auto& [name, shape] : batch.streams) {
    if (shape.real.empty()) continue;
    const int64_t s = shape.sequence_length;
    PT_DCHECK(shape.tokens() == batch.batch_size * s);
    const std::vector<int64_t> lengths = lengths_left(batch, name, multiple, of_sample);
    shape.sample_starts = {0};
    for (const int64_t length : lengths)
      shape.sample_starts.push_back(shape.sample_starts.back() + length);
    cut_rows(shape.position_ids, s, lengths);
    cut_pieces(shape, lengths);
    for (auto& [field, values] : batch.fields) {
      if (values.field.stream != name) continue;
      if (values.field.type == FieldType::kInt64) {
        cut_rows(values.ints, s, lengths);
      } else {
        cut_rows(values.floats, s, lengths);
      }
    }
    if (shape.real_tokens == shape.tokens()) shape.real.clear();
  }
}

} // namespace pentatron::data
