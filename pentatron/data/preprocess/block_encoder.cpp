#include "pentatron/data/preprocess/block_encoder.h"

#include <optional>
#include <utility>

#include "pentatron/base/error.h"
#include "pentatron/data/json_line.h"
#include "pentatron/data/split_sentences.h"
#include "pentatron/data/utf8.h"

namespace pentatron::data {

namespace {

constexpr size_t kLongDocument = size_t{1} << 20;

void count_document(int64_t bytes, bool empty, InputReport& report) {
  ++(empty ? report.empty_documents : report.documents);
  report.text_bytes += bytes;
}

} // namespace

EncodedBlock BlockEncoder::operator()(Block block) {
  EncodedBlock out;
  out.text_size = block.text.size();
  out.keys.resize(options_.json_keys.size());
  out.report.files = block.begins_file ? 1 : 0;
  for (auto& [kind, input] : block.bad) out.report.bad(kind, std::move(input));
  size_t begin = 0;
  for (size_t i = 0; i < block.ends.size(); ++i) {
    std::string_view text(block.text.data() + begin, block.ends[i] - begin);
    begin = block.ends[i];
    const bool is_record = !block.records.empty();
    SkippedInput place{.file = block.file->path.string(), .element = block.is_array};
    if (is_record) place.number = block.records[i];
    if ((!is_record || (place.number == 1 && !place.element)) && text.starts_with(kByteOrderMark))
      text.remove_prefix(kByteOrderMark.size());
    if (const size_t at = find_invalid_utf8(text); at != std::string_view::npos) {
      place.reason = fmt::format("is not UTF-8 at {}byte {}", is_record ? "its " : "", at);
      out.report.bad(BadInput::kUtf8, std::move(place));
    } else if (is_record) {
      take_record(text, std::move(place), out);
    } else {
      encode(text, out.keys[0]);
      for (size_t k = 1; k < out.keys.size(); ++k) out.keys[k].sequences.push_back(0);
      count_document(static_cast<int64_t>(text.size()), text.empty(), out.report);
    }
  }
  for (const Encoded& key : out.keys) out.report.tokens += static_cast<int64_t>(key.tokens.size());
  block.text = {};
  out.block = std::move(block);
  return out;
}

void BlockEncoder::take_record(std::string_view record, SkippedInput place, EncodedBlock& out) {
  documents_.resize(options_.json_keys.size());
  int64_t bytes = 0;
  bool empty = true;
  for (size_t k = 0; k < documents_.size(); ++k) {
    std::optional<NoText> none = read_text_or_ids(record, options_.json_keys[k],
                                                  options_.tokenizer->vocab_size(), documents_[k]);
    if (!none && documents_[k].is_ids && options_.split_sentences)
      none = NoText{BadInput::kMissingKey,
                    fmt::format("has token ids under the key \"{}\", which --split-sentences "
                                "cannot split",
                                options_.json_keys[k])};
    if (none) {
      place.reason = std::move(none->reason);
      place.key = std::move(none->key);
      return out.report.bad(none->kind, std::move(place));
    }
    bytes += static_cast<int64_t>(documents_[k].text.size());
    empty = empty && documents_[k].text.empty() && documents_[k].ids.empty();
  }
  for (size_t k = 0; k < documents_.size(); ++k) {
    if (documents_[k].is_ids)
      take_ids(documents_[k].ids, out.keys[k]);
    else
      encode(documents_[k].text, out.keys[k]);
  }
  count_document(bytes, empty, out.report);
}

void BlockEncoder::take_ids(const std::vector<int32_t>& ids, Encoded& out) {
  const size_t first = out.lengths.size();
  out.tokens.insert(out.tokens.end(), ids.begin(), ids.end());
  if (!ids.empty()) out.lengths.push_back(std::ssize(ids));
  end_document(first, out);
}

void BlockEncoder::encode(std::string_view text, Encoded& out) {
  const size_t first = out.lengths.size();
  if (options_.split_sentences) {
    for (const std::string& sentence : spaced_sentences(text)) encode_sequence(sentence, out);
  } else {
    encode_sequence(text, out);
  }
  end_document(first, out);
}

/// `first`: of its sequences.
void BlockEncoder::end_document(size_t first, Encoded& out) {
  // As Megatron: a document without tokens gets no end either.
  if (options_.append_eod && out.lengths.size() > first) {
    out.tokens.push_back(options_.tokenizer->eod());
    ++out.lengths.back();
  }
  out.sequences.push_back(static_cast<int64_t>(out.lengths.size() - first));
}

void BlockEncoder::encode_sequence(std::string_view text, Encoded& out) {
  const size_t before = out.tokens.size();
  // A long document must not be copied again for the sake of its last token.
  if (text.size() > kLongDocument) out.tokens.reserve(before + text.size() + 1);
  options_.tokenizer->encode(text, out.tokens);
  if (out.tokens.size() > before)
    out.lengths.push_back(static_cast<int64_t>(out.tokens.size() - before));
}

} // namespace pentatron::data
