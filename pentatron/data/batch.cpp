#include "pentatron/data/batch.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "pentatron/base/error.h"

namespace pentatron::data {

namespace {

int64_t count_targets(const FieldValues& values) {
  const double none = *values.field.none;
  if (values.field.type == FieldType::kInt64) {
    const auto n = std::ranges::count(values.ints, static_cast<int64_t>(none));
    return std::ssize(values.ints) - n;
  }
  const auto is_none = [&](double value) {
    return std::isnan(none) ? std::isnan(value) : value == none;
  };
  return std::ssize(values.floats) - std::ranges::count_if(values.floats, is_none);
}

/// Where the rows and their pieces lie, once all are there.
void measure(StreamShape& shape, int64_t batch_size) {
  const int64_t s = shape.sequence_length;
  for (int64_t row = 0; row <= batch_size; ++row) shape.sample_starts.push_back(row * s);
  shape.cu_seqlens.push_back(shape.tokens());
  shape.real_tokens = shape.real.empty() ? shape.tokens() : 0;
  for (const StreamRange& range : shape.real) shape.real_tokens += range.size();
  for (size_t i = 1; i < shape.cu_seqlens.size(); ++i) {
    int64_t begin = shape.cu_seqlens[i - 1], end = shape.cu_seqlens[i];
    shape.max_seqlen = std::max(shape.max_seqlen, end - begin);
    if (!shape.real.empty()) {
      const int64_t row = begin / s;
      const StreamRange& real = shape.real[static_cast<size_t>(row)];
      begin = std::max(begin, row * s + real.begin);
      end = std::max(begin, std::min(end, row * s + real.end));
    }
    shape.squared_lengths += (end - begin) * (end - begin);
    shape.lengths.add(end - begin);
  }
  shape.packed = std::ssize(shape.cu_seqlens) > batch_size + 1;
}

} // namespace

std::span<int64_t> SampleView::ints(size_t field) const {
  const Slot& slot = fields_[field];
  return std::span(slot.values->ints)
      .subspan(static_cast<size_t>(row_ * slot.width), static_cast<size_t>(slot.width));
}

std::span<double> SampleView::floats(size_t field) const {
  const Slot& slot = fields_[field];
  return std::span(slot.values->floats)
      .subspan(static_cast<size_t>(row_ * slot.width), static_cast<size_t>(slot.width));
}

std::span<int64_t> SampleView::position_ids(size_t stream) const {
  StreamShape& shape = *streams_[stream];
  shape.positions_given = true;
  const auto s = static_cast<size_t>(shape.sequence_length);
  return std::span(shape.position_ids).subspan(static_cast<size_t>(row_) * s, s);
}

void SampleView::begin_document(size_t stream, int64_t place) const {
  StreamShape& shape = *streams_[stream];
  PT_DCHECK(place > 0 && place < shape.sequence_length);
  shape.cu_seqlens.push_back(row_ * shape.sequence_length + place);
}

void SampleView::set_real(size_t stream, StreamRange range) const {
  StreamShape& shape = *streams_[stream];
  const int64_t s = shape.sequence_length;
  PT_DCHECK(range.begin >= 0 && range.begin < range.end && range.end <= s);
  if (shape.real.empty()) {
    if (range.size() == s) return;
    shape.real.assign(static_cast<size_t>(rows_), StreamRange{0, s});
  }
  shape.real[static_cast<size_t>(row_)] = range;
}

/// Makes room for a batch and hands out its rows in order.
class BatchBuilder {
 public:
  BatchBuilder(const Dataset& dataset, std::span<const int64_t> sample_ids) {
    batch_.batch_size = view_.rows_ = std::ssize(sample_ids);
    batch_.sample_ids.assign(sample_ids.begin(), sample_ids.end());
    for (const BatchStream& stream : dataset.streams()) add(stream);
    for (const BatchField& field : dataset.fields()) add(field);
  }

  const SampleView& row(int64_t r) {
    view_.row_ = r;
    for (StreamShape* shape : view_.streams_) {
      shape->cu_seqlens.push_back(r * shape->sequence_length);
    }
    return view_;
  }

  Batch finish() {
    for (StreamShape* shape : view_.streams_) measure(*shape, batch_.batch_size);
    for (const auto& [name, values] : batch_.fields) {
      if (values.field.none) batch_.num_targets[name] = count_targets(values);
    }
    return std::move(batch_);
  }

 private:
  void add(const BatchStream& stream) {
    StreamShape& shape = batch_.streams[stream.name];
    const int64_t s = shape.sequence_length = stream.sequence_length;
    shape.position_ids.resize(static_cast<size_t>(batch_.batch_size * s));
    for (auto row = shape.position_ids.begin(); row != shape.position_ids.end(); row += s)
      std::iota(row, row + s, int64_t{0});
    view_.streams_.push_back(&shape);
  }

  void add(const BatchField& field) {
    FieldValues& values = batch_.fields[field.name];
    values.field = field;
    const int64_t width =
        field.stream.empty() ? 1 : batch_.streams.at(field.stream).sequence_length;
    const auto n = static_cast<size_t>(batch_.batch_size * width);
    if (field.type == FieldType::kInt64) {
      values.ints.assign(n, static_cast<int64_t>(field.fill));
    } else {
      values.floats.assign(n, field.fill);
    }
    view_.fields_.push_back({&values, width});
  }

  Batch batch_;
  SampleView view_;
};

Batch make_batch(const Dataset& dataset, std::span<const int64_t> sample_ids) {
  BatchBuilder builder(dataset, sample_ids);
  for (int64_t r = 0; r < std::ssize(sample_ids); ++r) {
    const SampleView& view = builder.row(r);
    if (const int64_t id = sample_ids[static_cast<size_t>(r)]; id >= 0) dataset.sample(id, view);
  }
  return builder.finish();
}

} // namespace pentatron::data
