#include "pentatron/base/document_lengths.h"

#include <algorithm>
#include <bit>

#include "pentatron/base/error.h"

namespace pentatron {

namespace {

size_t class_of_length(int64_t length) {
  if (length < 4) return static_cast<size_t>(length);
  const int shift = static_cast<int>(std::bit_width(static_cast<uint64_t>(length))) - 3;
  return static_cast<size_t>(4 * shift + (length >> shift));
}

} // namespace

void DocumentLengths::add(int64_t length) {
  if (length <= 0) return;
  PT_DCHECK(length < int64_t{1} << 31);
  const size_t place = class_of_length(length);
  if (place >= classes_.size()) classes_.resize(place + 1);
  Class& of = classes_[place];
  ++of.documents;
  of.tokens += length;
  of.squares += length * length;
}

DocumentLengths& DocumentLengths::operator+=(const DocumentLengths& other) {
  classes_.resize(std::max(classes_.size(), other.classes_.size()));
  for (size_t i = 0; i < other.classes_.size(); ++i) {
    classes_[i].documents += other.classes_[i].documents;
    classes_[i].tokens += other.classes_[i].tokens;
    classes_[i].squares += other.classes_[i].squares;
  }
  return *this;
}

std::vector<int64_t> DocumentLengths::to_counts() const {
  std::vector<int64_t> counts;
  for (const Class& of : classes_)
    counts.insert(counts.end(), {of.documents, of.tokens, of.squares});
  counts.resize(static_cast<size_t>(3 * kNumClasses));
  return counts;
}

DocumentLengths DocumentLengths::from_counts(const int64_t* counts) {
  DocumentLengths lengths;
  for (int64_t i = 0; i < kNumClasses; ++i, counts += 3)
    lengths.classes_.push_back({.documents = counts[0], .tokens = counts[1], .squares = counts[2]});
  while (!lengths.empty() && lengths.classes_.back().documents == 0) lengths.classes_.pop_back();
  return lengths;
}

} // namespace pentatron
