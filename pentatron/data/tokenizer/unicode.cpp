#include "pentatron/data/tokenizer/unicode.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <memory>
#include <unordered_map>

#include "pentatron/data/utf8.h"

namespace pentatron::data::tokenizer {

namespace {

#include "pentatron/data/tokenizer/unicode_tables.inc"

/// A map from code points to small numbers in pages of 256; 0 where nothing is set.
class CodePointMap {
 public:
  CodePointMap() : pages_(256, 0) {}
  void set(char32_t c, uint32_t value) {
    uint16_t& page = index_[c >> 8];
    if (page == 0) {
      page = static_cast<uint16_t>(pages_.size() / 256);
      pages_.resize(pages_.size() + 256, 0);
    }
    pages_[size_t{page} * 256 + (c & 255)] = value;
  }
  uint32_t operator[](char32_t c) const { return pages_[size_t{index_[c >> 8]} * 256 + (c & 255)]; }

 private:
  std::array<uint16_t, 0x1100> index_ = {};
  std::vector<uint32_t> pages_;
};

constexpr char32_t kHangulS = 0xAC00, kHangulL = 0x1100, kHangulV = 0x1161, kHangulT = 0x11A7;
constexpr uint32_t kHangulLs = 19, kHangulVs = 21, kHangulTs = 28;
constexpr uint32_t kHangulSs = kHangulLs * kHangulVs * kHangulTs;

struct NormalTables {
  CodePointMap combining;      // canonical combining class
  CodePointMap lower;          // lower case
  CodePointMap decomposition;  // position in kDecompositions, plus 1
  CodePointMap changes_in_nfc; // 1: not always the same in NFC
  std::unordered_map<uint64_t, char32_t> compositions;

  NormalTables() {
    for (const uint32_t entry : kCombiningClasses) {
      combining.set(entry >> 8, entry & 255);
      changes_in_nfc.set(entry >> 8, 1);
    }
    for (size_t i = 0; i < std::size(kLowercase); i += 2)
      lower.set(kLowercase[i], kLowercase[i + 1] == 0 ? kTwo : kLowercase[i + 1]);
    for (size_t i = 0; i < std::size(kDecompositions);) {
      const uint32_t c = kDecompositions[i], info = kDecompositions[i + 1], length = info >> 2;
      decomposition.set(c, static_cast<uint32_t>(i) + 1);
      if ((info & 2) != 0) {
        compositions[uint64_t{kDecompositions[i + 2]} << 32 | kDecompositions[i + 3]] = c;
        changes_in_nfc.set(kDecompositions[i + 3], 1);
      } else if ((info & 1) == 0) {
        changes_in_nfc.set(c, 1);
      }
      i += 2 + length;
    }
    for (char32_t c = kHangulV; c < kHangulV + kHangulVs; ++c) changes_in_nfc.set(c, 1);
    for (char32_t c = kHangulT + 1; c < kHangulT + kHangulTs; ++c) changes_in_nfc.set(c, 1);
  }
  static constexpr uint32_t kTwo = 0xFFFFFFFF;
};

const NormalTables& normal_tables() {
  static const auto tables = std::make_unique<NormalTables>();
  return *tables;
}

void decompose(const NormalTables& tables, char32_t c, bool compatibility, std::u32string& out) {
  if (c >= kHangulS && c < kHangulS + kHangulSs) {
    const uint32_t s = c - kHangulS;
    out += kHangulL + s / (kHangulVs * kHangulTs);
    out += kHangulV + s % (kHangulVs * kHangulTs) / kHangulTs;
    if (s % kHangulTs != 0) out += kHangulT + s % kHangulTs;
    return;
  }
  const uint32_t at = c < 0xA0 ? 0 : tables.decomposition[c];
  if (at == 0 || ((kDecompositions[at] & 1) != 0 && !compatibility)) {
    out += c;
    return;
  }
  for (uint32_t i = 0; i < kDecompositions[at] >> 2; ++i)
    decompose(tables, kDecompositions[at + 1 + i], compatibility, out);
}

/// Marks after a starter in the order of their combining classes.
void reorder(const NormalTables& tables, std::u32string& text) {
  for (size_t i = 0; i < text.size();) {
    if (tables.combining[text[i]] == 0) {
      ++i;
      continue;
    }
    size_t end = i + 1;
    while (end < text.size() && tables.combining[text[end]] != 0) ++end;
    if (end - i > 1) {
      std::stable_sort(
          text.begin() + static_cast<std::ptrdiff_t>(i),
          text.begin() + static_cast<std::ptrdiff_t>(end),
          [&](char32_t a, char32_t b) { return tables.combining[a] < tables.combining[b]; });
    }
    i = end;
  }
}

/// The primary composite of two code points, or 0.
char32_t composite(const NormalTables& tables, char32_t a, char32_t b) {
  if (a >= kHangulL && a < kHangulL + kHangulLs && b >= kHangulV && b < kHangulV + kHangulVs)
    return kHangulS + ((a - kHangulL) * kHangulVs + (b - kHangulV)) * kHangulTs;
  if (a >= kHangulS && a < kHangulS + kHangulSs && (a - kHangulS) % kHangulTs == 0 &&
      b > kHangulT && b < kHangulT + kHangulTs)
    return a + (b - kHangulT);
  const auto found = tables.compositions.find(uint64_t{a} << 32 | b);
  return found == tables.compositions.end() ? 0 : found->second;
}

void compose(const NormalTables& tables, std::u32string& text) {
  size_t out = 0, starter = std::u32string::npos;
  uint32_t last_class =
      0; // of what stands between the starter and here; 256 after a starter that stays
  for (const char32_t c : text) {
    const uint32_t combining = tables.combining[c];
    if (starter != std::u32string::npos && (out == starter + 1 || last_class < combining)) {
      if (const char32_t both = composite(tables, text[starter], c)) {
        text[starter] = both;
        continue;
      }
    }
    if (combining == 0) starter = out;
    last_class = combining;
    text[out++] = c;
  }
  text.resize(out);
}

bool is_nfc(const NormalTables& tables, std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    if (static_cast<unsigned char>(text[i]) < 0xCC) { // below U+0300
      i += static_cast<unsigned char>(text[i]) < 0x80 ? 1 : 2;
      continue;
    }
    const CodePoint c = read_code_point(text.data() + i);
    if (tables.changes_in_nfc[c.value] != 0) return false;
    i += c.size;
  }
  return true;
}

bool is_ascii(std::string_view text) {
  return std::none_of(text.begin(), text.end(),
                      [](char c) { return static_cast<unsigned char>(c) >= 0x80; });
}

uint8_t flags_of(char32_t c, Category category) {
  using enum Category;
  uint8_t flags = 0;
  const auto in = [category](Category first, Category last) {
    return category >= first && category <= last;
  };
  if (in(kLl, kLu)) flags |= kLetter;
  if (in(kNd, kNo)) flags |= kNumber;
  if (in(kMc, kMn)) flags |= kMark | kUpperLike | kLowerLike;
  if (in(kLm, kLo)) flags |= kUpperLike | kLowerLike;
  if (in(kLt, kLu)) flags |= kUpperLike;
  if (category == kLl) flags |= kLowerLike;
  if (in(kPc, kPs)) flags |= kPunctuation;
  if (in(kSc, kSo)) flags |= kSymbol;
  if (in(kZl, kZs) || (c >= 9 && c <= 13) || c == 0x85) flags |= kSpace;
  return flags;
}

/// Calls f(code point, value) for all of a table of runs.
template <size_t kSize, class F> void for_each_run(const uint32_t (&runs)[kSize], F&& f) {
  for (size_t i = 0; i < kSize; ++i) {
    const char32_t end = i + 1 < kSize ? runs[i + 1] >> 8 : CharTables::kSize;
    for (char32_t c = runs[i] >> 8; c < end; ++c) f(c, runs[i] & 255);
  }
}

} // namespace

const CharTables& char_tables() {
  static const CharTables tables = [] {
    CharTables t{std::vector<uint8_t>(CharTables::kSize), std::vector<Category>(CharTables::kSize),
                 std::vector<uint8_t>(CharTables::kSize)};
    for_each_run(kAgeRuns, [&](char32_t c, uint32_t age) { t.age[c] = static_cast<uint8_t>(age); });
    for_each_run(kCategoryRuns, [&](char32_t c, uint32_t value) {
      t.category[c] = static_cast<Category>(value);
      t.flags[c] = flags_of(c, t.category[c]);
    });
    return t;
  }();
  return tables;
}

Category old_category(char32_t c) {
  using enum Category;
  // Those that later versions changed.
  switch (c) {
  case 0x166D:
    return kPo;
  case 0x111C9:
    return kPo;
  case 0x1734:
    return kMn;
  case 0x1171E:
    return kMn;
  case 0x1885:
    return kLo;
  case 0x1886:
    return kLo;
  case 0xA9BD:
    return kMc;
  default:
    break;
  }
  const CharTables& tables = char_tables();
  return tables.age[c] == 0 ? tables.category[c] : kCn;
}

bool is_old_mark(char32_t c) {
  if (c == 0x1CF2 || c == 0x1CF3) return true;
  const CharTables& tables = char_tables();
  return tables.age[c] <= 1 && (tables.flags[c] & kMark) != 0 && c != 0x111C9;
}

bool is_word(char32_t c) {
  using enum Category;
  const CharTables& tables = char_tables();
  if ((tables.flags[c] & (kLetter | kMark)) != 0) return true;
  const Category category = tables.category[c];
  if (category == kNd || category == kNl || category == kPc) return true;
  return c == 0x200C || c == 0x200D || (c >= 0x24B6 && c <= 0x24E9) ||
         (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) ||
         (c >= 0x1F170 && c <= 0x1F189);
}

CodePoint last_code_point(std::string_view text) {
  size_t i = text.size() - 1;
  while (i > 0 && (static_cast<unsigned char>(text[i]) & 0xC0) == 0x80) --i;
  return read_code_point(text.data() + i);
}

std::string normalize(std::string_view text, NormalForm form) {
  const NormalTables& tables = normal_tables();
  const bool composed = form == NormalForm::kNfc || form == NormalForm::kNfkc;
  const bool compatibility = form == NormalForm::kNfkc || form == NormalForm::kNfkd;
  if (form == NormalForm::kNfc ? is_nfc(tables, text) : is_ascii(text)) return std::string(text);
  std::u32string points;
  points.reserve(text.size());
  for_each_code_point(text, [&](char32_t c) { decompose(tables, c, compatibility, points); });
  reorder(tables, points);
  if (composed) compose(tables, points);
  std::string out;
  out.reserve(text.size());
  for (const char32_t c : points) append_utf8(out, c);
  return out;
}

std::string to_lower(std::string_view text) {
  const NormalTables& tables = normal_tables();
  std::string out;
  out.reserve(text.size());
  for_each_code_point(text, [&](char32_t c) {
    const uint32_t lower = tables.lower[c];
    if (lower == NormalTables::kTwo) {
      out += "i\xCC\x87";
    } else {
      append_utf8(out, lower == 0 ? c : lower);
    }
  });
  return out;
}

namespace {

/// The first letter whose lower case this is, and letters that are nobody's lower case.
std::unordered_map<char32_t, char32_t> upper_letters() {
  const NormalTables& tables = normal_tables();
  const CharTables& chars = char_tables();
  std::unordered_map<char32_t, char32_t> upper = {
      {U'\u00B5', U'\u039C'}, {U'\u0131', U'I'}, {U'\u017F', U'S'}, {U'\u03C2', U'\u03A3'}};
  for (char32_t c = 0; c < CharTables::kSize; ++c) {
    const Category category = chars.category[c];
    if (category != Category::kLu && category != Category::kNl && category != Category::kSo)
      continue;
    const uint32_t lower = tables.lower[c];
    if (lower != 0 && lower != NormalTables::kTwo) upper.emplace(lower, c);
  }
  return upper;
}

struct Capitals {
  std::string_view upper, title;
};
const std::unordered_map<char32_t, Capitals> kSpecialCapitals = {
    {U'\u00DF', {"SS", "Ss"}},
    {U'\u0149', {"\u02BCN", "\u02BCN"}},
    {U'\u01C4', {"\u01C4", "\u01C5"}},
    {U'\u01C5', {"\u01C4", "\u01C5"}},
    {U'\u01C6', {"\u01C4", "\u01C5"}},
    {U'\u01C7', {"\u01C7", "\u01C8"}},
    {U'\u01C8', {"\u01C7", "\u01C8"}},
    {U'\u01C9', {"\u01C7", "\u01C8"}},
    {U'\u01CA', {"\u01CA", "\u01CB"}},
    {U'\u01CB', {"\u01CA", "\u01CB"}},
    {U'\u01CC', {"\u01CA", "\u01CB"}},
    {U'\u01F0', {"J\u030C", "J\u030C"}},
    {U'\u01F1', {"\u01F1", "\u01F2"}},
    {U'\u01F2', {"\u01F1", "\u01F2"}},
    {U'\u01F3', {"\u01F1", "\u01F2"}},
    {U'\u0390', {"\u0399\u0308\u0301", "\u0399\u0308\u0301"}},
    {U'\u03B0', {"\u03A5\u0308\u0301", "\u03A5\u0308\u0301"}},
    {U'\u03D0', {"\u0392", "\u0392"}},
    {U'\u03D1', {"\u0398", "\u0398"}},
    {U'\u03D5', {"\u03A6", "\u03A6"}},
    {U'\u03D6', {"\u03A0", "\u03A0"}},
    {U'\u03F0', {"\u039A", "\u039A"}},
    {U'\u03F1', {"\u03A1", "\u03A1"}},
    {U'\u03F5', {"\u0395", "\u0395"}},
    {U'\u0587', {"\u0535\u0552", "\u0535\u0582"}},
    {U'\u1E96', {"H\u0331", "H\u0331"}},
    {U'\u1E97', {"T\u0308", "T\u0308"}},
    {U'\u1E98', {"W\u030A", "W\u030A"}},
    {U'\u1E99', {"Y\u030A", "Y\u030A"}},
    {U'\u1E9A', {"A\u02BE", "A\u02BE"}},
    {U'\u1E9B', {"\u1E60", "\u1E60"}},
    {U'\uFB00', {"FF", "Ff"}},
    {U'\uFB01', {"FI", "Fi"}},
    {U'\uFB02', {"FL", "Fl"}},
    {U'\uFB03', {"FFI", "Ffi"}},
    {U'\uFB04', {"FFL", "Ffl"}},
    {U'\uFB05', {"ST", "St"}},
    {U'\uFB06', {"ST", "St"}},
    {U'\uFB13', {"\u0544\u0546", "\u0544\u0576"}},
    {U'\uFB14', {"\u0544\u0535", "\u0544\u0565"}},
    {U'\uFB15', {"\u0544\u053B", "\u0544\u056B"}},
    {U'\uFB16', {"\u054E\u0546", "\u054E\u0576"}},
    {U'\uFB17', {"\u0544\u053D", "\u0544\u056D"}}};

bool has_title_of_its_own(char32_t c) { // Georgian writes no capitals at the start of a word
  return c >= U'\u10D0' && c <= U'\u10FF';
}

std::string with_capitals(std::string_view text, bool title) {
  static const std::unordered_map<char32_t, char32_t> kUpper = upper_letters();
  std::string out;
  out.reserve(text.size());
  for_each_code_point(text, [&](char32_t c) {
    const auto upper = kUpper.find(c);
    if (const auto special = kSpecialCapitals.find(c); special != kSpecialCapitals.end())
      out += title ? special->second.title : special->second.upper;
    else
      append_utf8(out,
                  upper == kUpper.end() || (title && has_title_of_its_own(c)) ? c : upper->second);
  });
  return out;
}

/// Marks, quotation marks and the like, which do not end a word (Case_Ignorable).
bool is_passed_over(char32_t c) {
  constexpr std::u32string_view kOthers = U"'.:\u00B7\u0387\u2018\u2019\u2024\u2027";
  const Category category = char_tables().category[c];
  return category == Category::kMn || category == Category::kMe || category == Category::kCf ||
         category == Category::kLm || category == Category::kSk ||
         kOthers.find(c) != std::u32string_view::npos;
}
bool is_cased(char32_t c) {
  const Category category = char_tables().category[c];
  return category == Category::kLu || category == Category::kLl || category == Category::kLt;
}

bool ends_in_cased(std::string_view text) {
  while (!text.empty()) {
    const CodePoint c = last_code_point(text);
    if (!is_passed_over(c.value)) return is_cased(c.value);
    text.remove_suffix(c.size);
  }
  return false;
}
bool begins_with_cased(std::string_view text) {
  while (!text.empty()) {
    const CodePoint c = read_code_point(text.data());
    if (!is_passed_over(c.value)) return is_cased(c.value);
    text.remove_prefix(c.size);
  }
  return false;
}

} // namespace

std::string to_upper(std::string_view text) {
  return with_capitals(text, false);
}

std::string to_title(std::string_view text) {
  return with_capitals(text, true);
}

std::string to_lower_words(std::string_view text) {
  constexpr std::string_view kCapitalSigma = "\u03A3", kFinalSigma = "\u03C2";
  if (text.find(kCapitalSigma) == std::string_view::npos) return to_lower(text);
  std::string out;
  size_t done = 0;
  for (size_t at = text.find(kCapitalSigma); at != std::string_view::npos;
       at = text.find(kCapitalSigma, done)) {
    out += to_lower(text.substr(done, at - done));
    done = at + kCapitalSigma.size();
    const bool last = ends_in_cased(text.substr(0, at)) && !begins_with_cased(text.substr(done));
    out += last ? kFinalSigma : to_lower(kCapitalSigma);
  }
  return out + to_lower(text.substr(done));
}

std::string replace_invalid_utf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  while (!bytes.empty()) {
    const size_t bad = find_invalid_utf8(bytes);
    if (bad == std::string_view::npos) {
      out += bytes;
      break;
    }
    out += bytes.substr(0, bad);
    bytes.remove_prefix(bad);
    out += "\xEF\xBF\xBD";
    // The longest beginning of a character counts as one.
    size_t length = 1;
    const auto b = static_cast<unsigned char>(bytes[0]);
    const size_t need = b >= 0xF0 && b <= 0xF4  ? 4
                        : b >= 0xE0 && b < 0xF0 ? 3
                        : b >= 0xC2 && b < 0xE0 ? 2
                                                : 1;
    while (length < need && length < bytes.size()) {
      const auto next = static_cast<unsigned char>(bytes[length]);
      unsigned char low = 0x80, high = 0xBF;
      if (length == 1) {
        if (b == 0xE0) low = 0xA0;
        if (b == 0xED) high = 0x9F;
        if (b == 0xF0) low = 0x90;
        if (b == 0xF4) high = 0x8F;
      }
      if (next < low || next > high) break;
      ++length;
    }
    bytes.remove_prefix(length);
  }
  return out;
}

} // namespace pentatron::data::tokenizer
