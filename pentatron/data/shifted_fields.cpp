#include "pentatron/data/shifted_fields.h"

#include <algorithm>
#include <utility>

#include "pentatron/base/error.h"

namespace pentatron::data {

namespace {

/// Of every token, where the real tokens of its document end; tokens of padding end there
/// themselves.
std::vector<int64_t> document_ends(const StreamShape& shape) {
  const int64_t tokens = shape.tokens(), s = shape.sequence_length;
  PT_DCHECK(tokens % s == 0);
  std::vector<int64_t> ends(static_cast<size_t>(tokens));
  auto next = shape.cu_seqlens.rbegin(); // the start of the document behind
  int64_t end = tokens;
  for (int64_t i = tokens - 1; i >= 0; --i) {
    while (*next > i) end = *next++;
    const auto at = static_cast<size_t>(i);
    if (i + 1 < end && shape.position_ids[at + 1] <= shape.position_ids[at]) end = i + 1;
    ends[at] = end;
    if (shape.real.empty()) continue;
    const StreamRange& real = shape.real[static_cast<size_t>(i / s)];
    const int64_t place = i % s;
    ends[at] = place < real.begin || place >= real.end ? i : std::min(end, i - place + real.end);
  }
  return ends;
}

} // namespace

void add_shifted_fields(Batch& batch, std::span<const ShiftedField> fields) {
  std::map<std::string, std::vector<int64_t>> ends;
  for (const ShiftedField& shifted : fields) {
    const bool positions = shifted.source.empty();
    const BatchField* const source = positions ? nullptr : &batch.fields.at(shifted.source).field;
    const std::string stream = positions ? shifted.stream : source->stream;
    const StreamShape& shape = batch.stream(stream);
    if (!ends.contains(stream)) ends[stream] = document_ends(shape);
    const std::vector<int64_t>& from = positions ? shape.position_ids : batch.ints(shifted.source);
    FieldValues values;
    values.field = {.name = shifted.name, .stream = stream};
    if (source != nullptr && source->none) values.field.fill = *(values.field.none = source->none);
    values.ints.assign(from.size(), static_cast<int64_t>(values.field.fill));
    for (size_t i = 0; i < from.size(); ++i) {
      const size_t place = i + static_cast<size_t>(shifted.places);
      if (std::cmp_less(place, ends[stream][i])) values.ints[i] = from[place];
    }
    if (values.field.none)
      batch.num_targets[shifted.name] =
          std::ssize(values.ints) -
          std::ranges::count(values.ints, static_cast<int64_t>(*values.field.none));
    batch.fields[shifted.name] = std::move(values);
  }
}

} // namespace pentatron::data
