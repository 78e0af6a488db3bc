#include "pentatron/data/sft/locate_answers.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "pentatron/base/error.h"

namespace pentatron::data {

namespace {

using OrderedJson = nlohmann::ordered_json;

/// Characters of private use around a word: no text has them, and templates neither trim nor escape
/// them.
constexpr std::string_view kMark = "\xEE\x80\x80mark\xEE\x80\x81";

/// Bytes at the beginning of both, up to where a marker or a line ends if both go on.
size_t common_begin(std::string_view a, std::string_view b) {
  const auto n = static_cast<size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
  if (n == a.size() || n == b.size()) return n;
  const size_t last = a.substr(0, n).find_last_of(">]\n");
  return last == std::string_view::npos ? 0 : last + 1;
}

/// `text` with the mark behind its last character that is not white space.
std::string marked_text(const std::string& text) {
  const size_t last = text.find_last_not_of(" \t\r\n");
  std::string marked = text;
  return marked.insert(last == std::string::npos ? 0 : last + 1, kMark);
}

/// Places in a message that a template may write last, most likely first.
std::vector<OrderedJson::json_pointer> texts_of(const OrderedJson& message) {
  std::vector<OrderedJson::json_pointer> texts;
  const auto add = [&](const OrderedJson::json_pointer& at) {
    if (message.contains(at) && message[at].is_string()) texts.push_back(at);
  };
  using At = OrderedJson::json_pointer;
  add(At("/content"));
  if (message.contains("content") && message["content"].is_array())
    for (size_t i = message["content"].size(); i-- > 0;) add(At("/content") / i / "text");
  if (message.contains("tool_calls") && message["tool_calls"].is_array())
    for (size_t i = message["tool_calls"].size(); i-- > 0;) {
      add(At("/tool_calls") / i / "function" / "name");
      add(At("/tool_calls") / i / "name");
      const At arguments = At("/tool_calls") / i / "function" / "arguments";
      if (message.contains(arguments) && message[arguments].is_object())
        for (const auto& [name, value] : message[arguments].items()) add(arguments / name);
    }
  add(At("/reasoning_content"));
  add(At("/thinking"));
  return texts;
}

class Locator {
 public:
  Locator(const OrderedJson& messages, const std::string& whole, const RenderSome& render)
      : messages_(messages), whole_(whole), render_(render) {}

  std::vector<TextSpan> answers() {
    std::vector<TextSpan> answers;
    OrderedJson before = OrderedJson::array();
    for (size_t i = 0; i < messages_.size(); ++i) {
      if (messages_[i]["role"] == "assistant") {
        std::optional<TextSpan> found = by_difference(before, i);
        if (!found) found = by_mark(before, i);
        if (!found || found->begin < done_)
          raise<DataError>("the chat template changes earlier text when a message is added, and "
                           "the answer in message {} cannot be located",
                           i + 1);
        answers.push_back(*found);
        done_ = found->end;
      }
      before.push_back(messages_[i]);
    }
    return answers;
  }

 private:
  /// What the message adds, if nothing before it changes.
  std::optional<TextSpan> by_difference(const OrderedJson& before, size_t i) const {
    const std::optional<std::string> prompt = render_(before, true);
    if (!prompt || prompt->empty() || !whole_.starts_with(*prompt)) return std::nullopt;
    OrderedJson with = before;
    with.push_back(messages_[i]);
    const std::optional<std::string> after = render_(with, false);
    if (!after || !whole_.starts_with(*after) || after->size() < prompt->size())
      return std::nullopt;
    return TextSpan{prompt->size(), after->size()};
  }

  std::optional<TextSpan> by_mark(const OrderedJson& before, size_t i) const {
    const std::string prompt = prompt_of(before);
    size_t from = done_; // behind the text of the message before
    if (i > 0)
      for (const auto& at : texts_of(messages_[i - 1]))
        if (const auto end = place_in_whole(i - 1, at)) {
          from = std::max(from, *end);
          break;
        }
    for (const auto& at : texts_of(messages_[i])) {
      const auto content_end = place_in_whole(i, at);
      if (!content_end || *content_end < from) continue;
      const auto begin =
          prompt.empty() ? behind_last(before, from) : begin_of(prompt, from, *content_end);
      if (!begin) return std::nullopt;
      if (i + 1 == messages_.size()) return TextSpan{*begin, whole_.size()};
      const auto end = end_of(before, i, at, prompt, *content_end);
      if (!end) return std::nullopt;
      return TextSpan{*begin, *end};
    }
    return std::nullopt;
  }

  OrderedJson with_mark(size_t i, const OrderedJson::json_pointer& at) const {
    OrderedJson message = messages_[i];
    message[at] = marked_text(message[at].get<std::string>());
    return message;
  }

  /// The byte of the whole text where the mark in a message would stand, if it stands in one place
  /// and changes nothing else.
  std::optional<size_t> place_in_whole(size_t i, const OrderedJson::json_pointer& at) const {
    OrderedJson messages = messages_;
    messages[i] = with_mark(i, at);
    std::optional<std::string> text = render_(messages, false);
    const size_t place = text ? text->find(kMark) : std::string::npos;
    if (place == std::string::npos) return std::nullopt;
    if (text->erase(place, kMark.size()) != whole_) return std::nullopt;
    return place;
  }

  /// The beginning of an answer behind these messages, or behind later ones if there are none.
  std::string prompt_of(const OrderedJson& before) const {
    OrderedJson messages = before;
    while (messages.empty() || messages.back()["role"] == "assistant" || !render_(messages, true)) {
      if (messages.size() == messages_.size()) return {};
      messages.push_back(messages_[messages.size()]);
    }
    const auto plain = render_(messages, false), prompt = render_(messages, true);
    if (!plain || !prompt) return {};
    return prompt->substr(common_begin(*plain, *prompt));
  }

  /// Behind the beginning of an answer that follows `from`, or what the text has of it.
  std::optional<size_t> begin_of(const std::string& prompt, size_t from, size_t before) const {
    if (prompt.empty()) return std::nullopt;
    if (const size_t at = whole_.find(prompt, from); at < before && at + prompt.size() <= before)
      return at + prompt.size();
    const std::string_view text = std::string_view(whole_).substr(0, before);
    size_t most = 0, end = 0;
    for (size_t at = from; at < before; ++at)
      if (const size_t n = common_begin(prompt, text.substr(at));
          n > most && prompt.find_first_not_of(" \t\r\n") < n) {
        most = n;
        end = at + n;
      }
    return most > 0 ? std::optional(end) : std::nullopt;
  }

  /// Behind what follows the text of the last of these messages, for templates that write nothing
  /// to begin an answer.
  std::optional<size_t> behind_last(const OrderedJson& before, size_t from) const {
    if (before.empty()) return std::nullopt;
    for (const auto& at : texts_of(before.back())) {
      OrderedJson messages = before;
      messages.back() = with_mark(before.size() - 1, at);
      const auto rest = rest_behind_mark(messages, true);
      if (rest && !rest->empty() && whole_.compare(from, rest->size(), *rest) == 0)
        return from + rest->size();
    }
    return std::nullopt;
  }

  std::optional<std::string> rest_behind_mark(const OrderedJson& messages, bool prompt) const {
    const std::optional<std::string> text = render_(messages, prompt);
    const size_t place = text ? text->find(kMark) : std::string::npos;
    if (place == std::string::npos) return std::nullopt;
    return text->substr(place + kMark.size());
  }

  /// Behind what ends a message: as it is in front of another answer, else as it is at the end of a
  /// conversation (nothing, perhaps).
  std::optional<size_t> end_of(const OrderedJson& before, size_t i,
                               const OrderedJson::json_pointer& at, const std::string& prompt,
                               size_t content_end) const {
    OrderedJson messages = before;
    messages.push_back(with_mark(i, at));
    const std::string_view text = std::string_view(whole_).substr(content_end);
    const std::optional<std::string> followed = rest_behind_mark(messages, true);
    if (followed && !prompt.empty() && followed->ends_with(prompt)) {
      const std::string_view rest =
          std::string_view(*followed).substr(0, followed->size() - prompt.size());
      if (!rest.empty() && text.starts_with(rest)) return content_end + rest.size();
    }
    std::optional<std::string> last = rest_behind_mark(messages, false);
    if (!last && messages_.back()["role"] == "assistant") // refused; then as that ends
      for (const auto& other : texts_of(messages_.back()))
        if (const auto place = place_in_whole(messages_.size() - 1, other)) {
          last = whole_.substr(*place);
          break;
        }
    if (!last) return std::nullopt;
    const size_t common = common_begin(*last, text);
    if (common == last->size() || (common > 0 && common == text.size()))
      return content_end + common;
    const auto marker = [](std::string_view rest) {
      return rest.starts_with('<') || rest.starts_with('[');
    };
    if (common == 0 || !marker(std::string_view(*last).substr(common)) ||
        !marker(text.substr(common)))
      return std::nullopt;
    return content_end + common;
  }

  const OrderedJson& messages_;
  const std::string& whole_;
  const RenderSome& render_;
  size_t done_ = 0; ///< the end of the answer before
};

} // namespace

std::vector<TextSpan> locate_answers(const OrderedJson& messages, const std::string& whole,
                                     const RenderSome& render) {
  return Locator(messages, whole, render).answers();
}

} // namespace pentatron::data
