#define PCRE2_CODE_UNIT_WIDTH 8
#include "pentatron/data/regex.h"

#include <pcre2.h>

#include <functional>
#include <new>

#include "pentatron/base/error.h"
#include "pentatron/data/pcre2_text.h"
#include "pentatron/data/utf8.h"

namespace pentatron::data {

namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

/// Whether {,n} begins there, which is {0,n} for Python, and text for PCRE2.
bool open_repeat(std::string_view pattern, size_t at) {
  if (!pattern.substr(at).starts_with("{,")) return false;
  size_t end = at + 2;
  while (end < pattern.size() && is_digit(pattern[end])) ++end;
  return end < pattern.size() && pattern[end] == '}';
}

/// The pattern for PCRE2, whose \z is Python's \Z.
std::string translated(std::string_view pattern) {
  std::string out;
  bool in_class = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (!in_class && open_repeat(pattern, i)) {
      out += "{0";
      continue;
    }
    out += pattern[i];
    if (in_class && pattern[i] == ']') {
      in_class = false;
    } else if (!in_class && pattern[i] == '[') { // in which a "]" at the beginning is one of it
      in_class = true;
      if (i + 1 < pattern.size() && pattern[i + 1] == '^') out += pattern[++i];
      if (i + 1 < pattern.size() && pattern[i + 1] == ']') out += pattern[++i];
    }
    if (pattern[i] != '\\' || i + 1 == pattern.size()) continue;
    ++i;
    out += pattern[i] == 'Z' ? 'z' : pattern[i];
  }
  return out;
}

} // namespace

struct Regex::Code {
  std::string pattern;
  pcre2_code* code = nullptr;
  pcre2_match_context* context = nullptr;

  Code() = default;
  Code(const Code&) = delete;
  ~Code() {
    pcre2_match_context_free(context);
    pcre2_code_free(code);
  }

  using Take = std::function<bool(const PCRE2_SIZE* ranges, uint32_t groups)>;
  /// Calls `take` for each match until it returns false.
  void each(std::string_view text, const Take& take) const {
    if (const size_t bad = find_invalid_utf8(text); bad != std::string_view::npos)
      raise<DataError>("the text that is searched for '{}' is not valid UTF-8 at byte {}", pattern,
                       bad);
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    // Of this call: several threads may search with one pattern.
    const std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)> owned(
        pcre2_match_data_create_from_pattern(code, nullptr), pcre2_match_data_free);
    pcre2_match_data* const data = owned.get();
    if (data == nullptr) throw std::bad_alloc();
    uint32_t groups = 0;
    pcre2_pattern_info(code, PCRE2_INFO_CAPTURECOUNT, &groups);
    size_t at = 0;
    uint32_t options = PCRE2_NO_UTF_CHECK;
    while (at <= text.size()) {
      const int found = pcre2_match(code, subject, text.size(), at, options, data, context);
      if (found == PCRE2_ERROR_NOMATCH) return;
      if (found < 0)
        raise<DataError>("the search for the pattern '{}' failed: {}", pattern,
                         pcre2_sentence(found));
      const PCRE2_SIZE* ranges = pcre2_get_ovector_pointer(data);
      if (ranges[0] < at || ranges[1] < ranges[0]) return; // \K in a lookahead
      at = ranges[1];
      // Behind an empty match the next one is not empty, or begins later.
      options = PCRE2_NO_UTF_CHECK | (ranges[1] == ranges[0] ? PCRE2_NOTEMPTY_ATSTART : 0);
      if (!take(ranges, groups)) return;
    }
  }
};

Regex::Regex(const std::string& pattern) : code_(std::make_unique<Code>()) {
  if (pattern.size() > kMaxPatternBytes)
    raise<DataError>("a pattern of {} bytes is longer than the limit of {}", pattern.size(),
                     kMaxPatternBytes);
  code_->pattern = pattern;
  const std::string source = translated(pattern);
  int error = 0;
  PCRE2_SIZE at = 0;
  code_->code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(source.data()), source.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &at, nullptr);
  if (code_->code == nullptr)
    raise<DataError>("the pattern '{}' is not a supported regular expression: {}", pattern,
                     pcre2_sentence(error));
  code_->context = pcre2_match_context_create(nullptr);
  if (code_->context == nullptr) throw std::bad_alloc();
  pcre2_set_match_limit(code_->context, 10'000'000);
  pcre2_set_depth_limit(code_->context, 100'000);
  pcre2_set_heap_limit(code_->context, 64 << 10); // KiB
}

Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

std::vector<Regex::Groups> Regex::find_all(std::string_view text) const {
  std::vector<Groups> all;
  code_->each(text, [&](const PCRE2_SIZE* ranges, uint32_t groups) {
    Groups captured;
    for (uint32_t g = groups == 0 ? 0 : 1; g <= groups; ++g) {
      const PCRE2_SIZE begin = ranges[2 * g], end = ranges[2 * g + 1];
      captured.emplace_back(begin == PCRE2_UNSET ? "" : text.substr(begin, end - begin));
    }
    all.push_back(std::move(captured));
    return true;
  });
  return all;
}

std::string Regex::replace(std::string_view text, std::string_view replacement, int64_t count,
                           size_t max_bytes) const {
  std::string out;
  size_t done = 0;
  int64_t number = 0;
  const auto grow = [&](std::string_view part) {
    if (out.size() + part.size() > max_bytes) throw DataError("a replaced text is too long");
    out += part;
  };
  code_->each(text, [&](const PCRE2_SIZE* ranges, uint32_t groups) {
    grow(text.substr(done, ranges[0] - done));
    const auto group = [&](size_t g) {
      if (g > groups)
        raise<DataError>("the replacement '{}' names group {}, but the pattern '{}' has {}",
                         replacement, g, code_->pattern, groups);
      if (ranges[2 * g] != PCRE2_UNSET)
        grow(text.substr(ranges[2 * g], ranges[2 * g + 1] - ranges[2 * g]));
    };
    for (size_t i = 0; i < replacement.size(); ++i) {
      const char c = replacement[i];
      if (c != '\\' || i + 1 == replacement.size()) {
        grow({&replacement[i], 1});
        continue;
      }
      const char next = replacement[++i];
      if (is_digit(next)) {
        size_t g = static_cast<size_t>(next - '0');
        if (g > 0 && i + 1 < replacement.size() && is_digit(replacement[i + 1]))
          g = 10 * g + static_cast<size_t>(replacement[++i] - '0');
        group(g);
      } else if (next == 'g' && replacement.substr(i).starts_with("g<") &&
                 i + 3 < replacement.size() && is_digit(replacement[i + 2]) &&
                 replacement[i + 3] == '>') {
        group(static_cast<size_t>(replacement[i + 2] - '0'));
        i += 3;
      } else if (next == 'n') {
        grow("\n");
      } else if (next == 't') {
        grow("\t");
      } else if (next == '\\') {
        grow("\\");
      } else {
        raise<DataError>("the replacement '{}' has an escape that is not supported", replacement);
      }
    }
    done = ranges[1];
    return ++number != count;
  });
  grow(text.substr(done));
  return out;
}

} // namespace pentatron::data
