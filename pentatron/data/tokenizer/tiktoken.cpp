#include "pentatron/data/tokenizer/tiktoken.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <unordered_map>

#include "pentatron/base/error.h"
#include "pentatron/data/tokenizer/bpe.h"
#include "pentatron/data/tokenizer/cached_tokenizer.h"
#include "pentatron/data/tokenizer/charsmap.h"
#include "pentatron/data/tokenizer/hugging_face.h"
#include "pentatron/data/tokenizer/splitter.h"
#include "pentatron/data/tokenizer/unicode.h"
#include "pentatron/data/tokenizer/vocabulary.h"

namespace pentatron::data::tokenizer {

namespace {

using ByBytes = std::unordered_map<std::string, int32_t>;
constexpr size_t kMaxTokenBytes = 1024;

/// Two tokens next to each other merge if their bytes together are a token, the lowest rank first.
Merges merges_of(const ByBytes& ids) {
  struct Pair {
    int32_t left, right, whole;
  };
  std::vector<Pair> pairs;
  std::string left, right;
  for (const auto& [bytes, id] : ids) {
    for (size_t cut = 1; cut < bytes.size(); ++cut) {
      left.assign(bytes, 0, cut);
      const auto a = ids.find(left);
      if (a == ids.end()) continue;
      right.assign(bytes, cut);
      const auto b = ids.find(right);
      if (b != ids.end()) pairs.push_back({a->second, b->second, id});
    }
  }
  Merges merges(pairs.size());
  for (const Pair& pair : pairs)
    merges.set(pair.left, pair.right, {static_cast<uint32_t>(pair.whole), pair.whole});
  return merges;
}

class TiktokenTokenizer final : public CachedTokenizer {
 public:
  TiktokenTokenizer(const Ranks& ranks, const TiktokenOptions& options)
      : name_(options.name), splitter_(make_splitter(options.pattern, PatternFlavor::kRust)),
        bytes_(ranks), special_(options.special) {
    auto ids = std::make_shared<ByBytes>();
    for (const auto& [bytes, rank] : ranks) {
      if (!ids->emplace(bytes, static_cast<int32_t>(rank)).second)
        raise<DataError>("rank {} occurs twice", rank);
    }
    std::array<int32_t, 256> of_byte = {};
    for (int b = 0; b < 256; ++b) {
      const auto found = ids->find(std::string(1, static_cast<char>(b)));
      if (found == ids->end()) raise<DataError>("the byte 0x{:02X} has no rank", b);
      of_byte[static_cast<size_t>(b)] = found->second;
    }
    bpe_ = std::make_unique<ByteBpe>(merges_of(*ids), of_byte, ids);
    vocab_size_ = std::max(bytes_.end(), special_.end());
    special_.for_each([&](std::string_view token, int32_t id) {
      if (bytes_.token(id))
        raise<DataError>("the special token '{}' has the id {} of another token", token, id);
    });
    eod_ = find_eod(*this, options.eod);
  }

  std::string name() const override { return name_; }
  int64_t vocab_size() const override { return vocab_size_; }
  int32_t eod() const override { return eod_; }
  std::string decode(std::span<const int64_t> tokens) const override {
    return decode(tokens, /*with_special=*/false);
  }
  std::string decode_with_special(std::span<const int64_t> tokens) const override {
    return decode(tokens, /*with_special=*/true);
  }
  std::string token_name(int64_t id) const override { return printable_token(text_of(id), id); }
  std::optional<int32_t> token_id(std::string_view token) const override {
    const std::optional<int32_t> special = special_.find(token);
    return special ? special : bytes_.find(token);
  }
  bool is_special(int64_t id) const override {
    return id == eod_ || special_.token(id).has_value();
  }

 protected:
  void encode_valid(std::string_view text, WordCache& cache,
                    std::vector<int32_t>& tokens) const override {
    const char* limit = text.data() + text.size();
    for (size_t from = 0; from < text.size();) {
      const Match match = splitter_->find(text, from);
      if (!match.found()) break;
      if (match.end > match.begin)
        bpe_->encode(text.substr(match.begin, match.end - match.begin), limit, cache, tokens);
      from = match.end;
      if (match.end == match.begin)
        from += match.end < text.size() ? utf8_length(text[match.end]) : 1;
    }
  }
  const PostProcessor& post_processor() const override { return around_; }

 private:
  std::string_view text_of(int64_t id) const {
    const auto special = special_.token(id);
    return special ? *special : bytes_.token(id).value_or(std::string_view());
  }
  std::string decode(std::span<const int64_t> tokens, bool with_special) const {
    std::string bytes;
    for (const int64_t id : tokens) {
      if (id < 0 || id >= vocab_size_)
        raise<DataError>("token {} is outside the tokenizer's range of 0 to {}", id,
                         vocab_size_ - 1);
      if (with_special || !is_special(id)) bytes += text_of(id);
    }
    return replace_invalid_utf8(bytes);
  }

  std::string name_;
  std::unique_ptr<Splitter> splitter_;
  Vocabulary bytes_, special_;
  std::unique_ptr<ByteBpe> bpe_;
  int64_t vocab_size_ = 0;
  int32_t eod_ = -1;
  PostProcessor around_; // nothing
};

} // namespace

Ranks read_tiktoken(std::string_view text) {
  Ranks ranks;
  for (size_t number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    const size_t space = line.find(' ');
    int64_t rank = -1;
    if (space != std::string_view::npos && space > 0) {
      const char* first = line.data() + space + 1;
      const char* last = line.data() + line.size();
      const auto [stop, error] = std::from_chars(first, last, rank);
      if (error != std::errc() || stop != last) rank = -1;
    }
    if (rank < 0) raise<DataError>("line {} is not a token in base64 and a rank", number);
    std::string bytes;
    try {
      bytes = decode_base64(line.substr(0, space));
    } catch (const DataError& error) {
      raise<DataError>("line {}: {}", number, error.what());
    }
    if (bytes.empty() || bytes.size() > kMaxTokenBytes)
      raise<DataError>("the token in line {} has {} bytes, but only 1 to {} are supported", number,
                       bytes.size(), kMaxTokenBytes);
    ranks.emplace_back(std::move(bytes), rank);
  }
  if (ranks.empty()) throw DataError("the rank file has no tokens");
  return ranks;
}

std::string tiktoken_pattern(const std::string& name_or_pattern) {
  if (name_or_pattern == "gpt2" || name_or_pattern == "r50k" || name_or_pattern == "p50k")
    return std::string(kGpt2Pattern);
  if (name_or_pattern == "cl100k") return std::string(kTiktokenCl100kPattern);
  if (name_or_pattern == "llama3") return std::string(kCl100kPattern);
  if (name_or_pattern == "qwen2") return std::string(kQwen2Pattern);
  if (name_or_pattern == "o200k") return std::string(kO200kPattern);
  return name_or_pattern;
}

TiktokenKind find_tiktoken_kind(std::string_view file_name, const Ranks& ranks) {
  const size_t count = ranks.size();
  const auto named = [&](std::string_view name) {
    return file_name.find(name) != std::string_view::npos;
  };
  const auto kind = [](std::string name, std::vector<std::pair<std::string, int64_t>> special) {
    TiktokenKind result{.options = {}, .known = true};
    result.options.pattern = tiktoken_pattern(name);
    result.options.name = std::move(name);
    result.options.special = std::move(special);
    return result;
  };
  if (named("r50k") || named("p50k") || named("gpt2") || count == 50256 || count == 50280)
    return kind("gpt2", {{"<|endoftext|>", count == 50280 ? 50256 : static_cast<int64_t>(count)}});
  if (named("o200k") || count == 199998) {
    if (count != 199998) return kind("o200k", {{"<|endoftext|>", static_cast<int64_t>(count)}});
    return kind("o200k", {{"<|endoftext|>", 199999}, {"<|endofprompt|>", 200018}});
  }
  if (count == 100256) {
    return kind("cl100k", {{"<|endoftext|>", 100257},
                           {"<|fim_prefix|>", 100258},
                           {"<|fim_middle|>", 100259},
                           {"<|fim_suffix|>", 100260},
                           {"<|endofprompt|>", 100276}});
  }
  if (named("cl100k")) return kind("cl100k", {{"<|endoftext|>", static_cast<int64_t>(count)}});
  const auto first = static_cast<int64_t>(count);
  std::vector<std::pair<std::string, int64_t>> special;
  const auto add = [&](std::string token) {
    special.emplace_back(std::move(token), first + static_cast<int64_t>(special.size()));
  };
  if (named("llama") || count == 128000) { // 256 with those in reserve
    int reserved = 0;
    const auto reserve = [&] { add(fmt::format("<|reserved_special_token_{}|>", reserved++)); };
    add("<|begin_of_text|>");
    add("<|end_of_text|>");
    for (int i = 0; i < 4; ++i) reserve();
    add("<|start_header_id|>");
    add("<|end_header_id|>");
    reserve();
    add("<|eot_id|>");
    while (special.size() < 256) reserve();
    return kind("llama3", std::move(special));
  }
  if (named("qwen") || count == 151643) {
    for (const char* token : {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}) add(token);
    for (int i = 0; i < 205; ++i) add(fmt::format("<|extra_{}|>", i));
    return kind("qwen2", std::move(special));
  }
  TiktokenKind other = kind("cl100k", {});
  other.known = false;
  other.options.name = "tiktoken";
  int64_t end = 0;
  for (const auto& [bytes, rank] : ranks) end = std::max(end, rank + 1);
  other.options.special = {{"<|endoftext|>", end}};
  return other;
}

std::shared_ptr<const Tokenizer> make_tiktoken(const Ranks& ranks, const TiktokenOptions& options) {
  return std::make_shared<TiktokenTokenizer>(ranks, options);
}

} // namespace pentatron::data::tokenizer
