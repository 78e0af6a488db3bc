#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <memory>

#include "pentatron/base/error.h"
#include "pentatron/data/pcre2_text.h"
#include "pentatron/data/tokenizer/pattern.h"
#include "pentatron/data/tokenizer/splitter.h"

namespace pentatron::data::tokenizer {

namespace {

constexpr size_t kJitStackBytes = size_t{8} << 20;

struct Free {
  void operator()(pcre2_code* p) const { pcre2_code_free(p); }
  void operator()(pcre2_compile_context* p) const { pcre2_compile_context_free(p); }
  void operator()(pcre2_match_context* p) const { pcre2_match_context_free(p); }
  void operator()(pcre2_match_data* p) const { pcre2_match_data_free(p); }
  void operator()(pcre2_jit_stack* p) const { pcre2_jit_stack_free(p); }
};
template <class T> using Owned = std::unique_ptr<T, Free>;

/// What a thread needs to match, for all patterns.
struct Scratch {
  Owned<pcre2_match_context> context{pcre2_match_context_create(nullptr)};
  Owned<pcre2_jit_stack> stack{pcre2_jit_stack_create(32 << 10, kJitStackBytes, nullptr)};
  Owned<pcre2_match_data> data{pcre2_match_data_create(1, nullptr)};
  Scratch() {
    if (!context || !stack || !data) throw std::bad_alloc();
    pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
    pcre2_set_match_limit(context.get(), 10'000'000);
    pcre2_set_depth_limit(context.get(), 100'000);
    pcre2_set_heap_limit(context.get(), 64 << 10); // KiB
  }
};

class RegexSplitter final : public Splitter {
 public:
  RegexSplitter(const std::string& pattern, PatternFlavor flavor) : pattern_(pattern) {
    if (pattern.size() > kMaxPatternBytes)
      raise<DataError>("a pattern of {} bytes is longer than the limit of {}", pattern.size(),
                       kMaxPatternBytes);
    const std::string translated = translate_pattern(pattern, flavor);
    uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_NO_UTF_CHECK | PCRE2_NEVER_BACKSLASH_C |
                       PCRE2_DOLLAR_ENDONLY | PCRE2_NO_AUTO_CAPTURE;
    if (flavor == PatternFlavor::kOniguruma) options |= PCRE2_MULTILINE;
    const Owned<pcre2_compile_context> context(pcre2_compile_context_create(nullptr));
    if (!context) throw std::bad_alloc();
    pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
    pcre2_set_parens_nest_limit(context.get(), 50);
    int code = 0;
    PCRE2_SIZE at = 0;
    code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                              options, &code, &at, context.get()));
    if (!code_)
      raise<DataError>("the pattern '{}' is not a supported regular expression: {}", pattern,
                       pcre2_sentence(code));
    jit_ = pcre2_jit_compile(code_.get(), PCRE2_JIT_COMPLETE) == 0;
  }

  Match find(std::string_view text, size_t from) const override {
    thread_local const Scratch scratch;
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    const int code =
        jit_ ? pcre2_jit_match(code_.get(), subject, text.size(), from, PCRE2_NO_UTF_CHECK,
                               scratch.data.get(), scratch.context.get())
             : pcre2_match(code_.get(), subject, text.size(), from, PCRE2_NO_UTF_CHECK,
                           scratch.data.get(), scratch.context.get());
    if (code == PCRE2_ERROR_NOMATCH) return {};
    if (code < 0)
      raise<DataError>("the search for the pattern '{}' failed: {}", pattern_,
                       pcre2_sentence(code));
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(scratch.data.get());
    if (range[0] < from || range[1] < range[0]) return {}; // \K in a lookahead
    return {range[0], range[1]};
  }

 private:
  std::string pattern_;
  Owned<pcre2_code> code_;
  bool jit_ = false;
};

} // namespace

std::unique_ptr<Splitter> make_regex_splitter(const std::string& pattern, PatternFlavor flavor) {
  return std::make_unique<RegexSplitter>(pattern, flavor);
}

std::unique_ptr<Splitter> make_splitter(const std::string& pattern, PatternFlavor flavor) {
  if (auto scanner = find_scanner(pattern)) return scanner;
  return make_regex_splitter(pattern, flavor);
}

} // namespace pentatron::data::tokenizer
