#include "pentatron/evaluation/tasks/field.h"

#include <algorithm>
#include <charconv>

#include <fmt/ranges.h>

#include "pentatron/base/error.h"
#include "pentatron/base/json.h"
#include "pentatron/base/nearest.h"
#include "pentatron/base/text.h"
#include "pentatron/base/utf8.h"
#include "pentatron/data/utf8.h"

namespace pentatron::evaluation {

namespace {

constexpr int64_t kMaxDigits = 18;

[[noreturn]] void fail(std::string_view what, std::string_view remedy) {
  raise<DataError>("{}\n  try: {}", what, remedy);
}

std::vector<std::string> names_of(const Document& doc) {
  std::vector<std::string> names;
  for (const auto& [name, value] : doc.items()) names.push_back(name);
  return names;
}

std::string one_of_columns(const Document& doc) {
  return fmt::format("one of the columns {}", fmt::join(names_of(doc), ", "));
}

/// What helps against an error of a template: the name that was meant, or what there is.
std::string template_remedy(std::string_view message, const Document& doc) {
  const std::vector<std::string> names = names_of(doc);
  if (names.empty()) return R"(a Jinja template, such as "{{question}}")";
  const size_t end = message.find("undefined") == std::string_view::npos
                         ? std::string_view::npos
                         : message.find_last_of('\'');
  if (end != std::string_view::npos && end > 0) {
    const size_t begin = message.find_last_of('\'', end - 1);
    if (begin != std::string_view::npos)
      if (const std::string near = nearest(message.substr(begin + 1, end - begin - 1), names);
          !near.empty())
        return fmt::format("{{{{{}}}}}", near);
  }
  return fmt::format("a template such as \"{{{{{}}}}}\" of the columns {}", names[0],
                     fmt::join(names, ", "));
}

/// The template speaks of itself as of a chat template. Its lines are not those of the file.
[[noreturn]] void raise_for(const std::string& name, const DataError& error, const Document& doc) {
  std::string text = error.what();
  constexpr std::string_view kTheirs = "the chat template", kLine = "line ";
  const size_t at = text.find(kTheirs);
  if (text.starts_with(kLine) && at != std::string::npos && text.substr(0, at).ends_with(" of "))
    text.replace(0, at + kTheirs.size(),
                 text.starts_with("line 1 of ")
                     ? name
                     : fmt::format("{} ({} of the template)", name, text.substr(0, at - 4)));
  else if (at != std::string::npos)
    text.replace(at, kTheirs.size(), name);
  else
    text = fmt::format("{}: {}", name, text);
  if (text.find("\n  try: ") != std::string::npos) throw DataError(text);
  fail(text, template_remedy(text.substr(std::min(name.size(), text.size())), doc));
}

bool is_digits(std::string_view text) {
  return !text.empty() && static_cast<int64_t>(text.size()) <= kMaxDigits &&
         std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

int64_t number_of(std::string_view digits) {
  int64_t number = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), number);
  return number;
}

/// Of the list [...]: a text without nested lists.
class ListReader {
 public:
  explicit ListReader(std::string_view text) : in_(text) {}

  std::optional<Document> read() {
    Document list = Document::array();
    if (!take('[')) return std::nullopt;
    blank();
    while (!take(']')) {
      std::optional<Document> item = value();
      if (!item) return std::nullopt;
      list.push_back(std::move(*item));
      blank();
      if (!take(',') && (at_ >= in_.size() || in_[at_] != ']')) return std::nullopt;
      blank();
    }
    return at_ == in_.size() ? std::optional(std::move(list)) : std::nullopt;
  }

 private:
  bool take(char c) {
    if (at_ >= in_.size() || in_[at_] != c) return false;
    ++at_;
    return true;
  }
  void blank() {
    while (at_ < in_.size() && (in_[at_] == ' ' || in_[at_] == '\n' || in_[at_] == '\t')) ++at_;
  }

  std::optional<Document> value() {
    if (at_ >= in_.size()) return std::nullopt;
    if (in_[at_] == '\'' || in_[at_] == '"') return string();
    const size_t end = std::min(in_.find_first_of(",] \n\t", at_), in_.size());
    const std::string_view word = in_.substr(at_, end - at_);
    at_ = end;
    if (word == "None") return Document(nullptr);
    if (word == "True" || word == "False") return Document(word == "True");
    const bool minus = word.starts_with('-');
    if (is_digits(word.substr(minus ? 1 : 0)))
      return Document(number_of(word.substr(minus ? 1 : 0)) * (minus ? -1 : 1));
    double real = 0;
    const auto [stop, error] = std::from_chars(word.data(), word.data() + word.size(), real);
    if (error == std::errc() && stop == word.data() + word.size()) return Document(real);
    return std::nullopt;
  }

  std::optional<Document> string() {
    const char quote = in_[at_++];
    std::string out;
    while (at_ < in_.size() && in_[at_] != quote) {
      const char c = in_[at_++];
      if (c != '\\') {
        out += c;
        continue;
      }
      if (at_ >= in_.size()) return std::nullopt;
      const char kind = in_[at_++];
      constexpr std::string_view kNames = "ntr\\'\"", kMeans = "\n\t\r\\'\"";
      if (const size_t i = kNames.find(kind); i != std::string_view::npos) {
        out += kMeans[i];
      } else if (kind == 'x' || kind == 'u' || kind == 'U') {
        const size_t digits = kind == 'x' ? 2 : kind == 'u' ? 4 : 8;
        if (at_ + digits > in_.size()) return std::nullopt;
        uint32_t code = 0;
        const char* const begin = in_.data() + at_;
        const auto [stop, error] = std::from_chars(begin, begin + digits, code, 16);
        if (error != std::errc() || stop != begin + digits || code > 0x10FFFF ||
            (code >= 0xD800 && code < 0xE000))
          return std::nullopt;
        append_utf8(out, code);
        at_ += digits;
      } else {
        out += '\\';
        out += kind;
      }
    }
    if (!take(quote)) return std::nullopt;
    return Document(std::move(out));
  }

  std::string_view in_;
  size_t at_ = 0;
};

} // namespace

std::optional<Document> parse_python_list(std::string_view text) {
  return ListReader(text).read();
}

Field::Field(std::string name, Document value) : name_(std::move(name)), value_(std::move(value)) {
  if (!value_.is_string()) return;
  try {
    template_ = std::make_shared<const data::tokenizer::ChatTemplate>(
        value_.get<std::string>(), data::tokenizer::TemplateRules{.trim_blocks = false,
                                                                  .lstrip_blocks = false,
                                                                  .keep_trailing_newline = true,
                                                                  .strict_undefined = true,
                                                                  .html_json = true});
  } catch (const DataError& error) {
    raise_for(name_, error, Document::object());
  }
}

std::set<std::string> Field::columns() const {
  if (!template_) return {};
  std::set<std::string> names = template_->names();
  names.insert(value_.get<std::string>());
  return names;
}

const Document* Field::column(const Document& doc) const {
  const auto found = doc.find(value_.get_ref<const std::string&>());
  return found == doc.end() ? nullptr : &*found;
}

std::string Field::render(const Document& doc) const {
  try {
    return template_->render(doc);
  } catch (const DataError& error) {
    raise_for(name_, error, doc);
  }
}

Document Field::text(const Document& doc, bool numbers) const {
  if (!value_.is_string()) return value_;
  if (const Document* found = column(doc)) return *found;
  std::string text = render(doc);
  if (numbers && is_digits(text)) return number_of(text);
  return text;
}

Document Field::target(const Document& doc, bool numbers) const {
  if (!value_.is_string()) return value_;
  if (const Document* found = column(doc)) return *found;
  std::string text = render(doc);
  if (numbers && is_digits(text)) return number_of(text);
  if (text.size() >= 2 && text.front() == '[' && text.back() == ']') {
    if (std::optional<Document> list = parse_python_list(text)) return std::move(*list);
  }
  return text;
}

std::vector<std::string> Field::choices(const Document& doc) const {
  Document list = value_;
  if (value_.is_string()) {
    if (const Document* found = column(doc)) {
      list = *found;
    } else {
      const std::string text = render(doc);
      std::optional<Document> parsed = parse_python_list(text);
      if (!parsed && text == value_.get_ref<const std::string&>())
        fail(fmt::format("{} gives '{}', which is neither a column nor a list", name_,
                         excerpt(text)),
             one_of_columns(doc));
      if (!parsed)
        fail(fmt::format("{} gives '{}', which is not a list of strings", name_, excerpt(text)),
             R"(a template that writes a list, such as "{{[option1, option2]}}")");
      list = std::move(*parsed);
    }
  }
  if (!list.is_array() && !list.is_object())
    fail(fmt::format("{} gives {}, which is not a list of strings", name_, excerpt(list.dump())),
         "a column that has a list, or a template such as \"{{[option1, option2]}}\"");
  std::vector<std::string> texts;
  for (const Document& item : list) {
    if (!item.is_string())
      fail(fmt::format("{} gives a list with {}, which is not a string", name_,
                       excerpt(item.dump())),
           value_.is_string() ? "choices that are strings, as of the template "
                                "\"{{choices|map('string')|list}}\""
                              : "choices in quotation marks");
    texts.push_back(item.get<std::string>());
  }
  if (texts.empty())
    fail(fmt::format("{} gives a list without choices", name_), "documents with choices");
  return texts;
}

std::optional<std::string> Field::word() const {
  if (!value_.is_string()) return std::nullopt;
  const std::string& text = value_.get_ref<const std::string&>();
  const bool word = !text.empty() && std::ranges::all_of(text, [](unsigned char c) {
    return c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  });
  return word ? std::optional(text) : std::nullopt;
}

} // namespace pentatron::evaluation
