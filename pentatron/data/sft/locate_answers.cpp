#include "pentatron/data/sft/locate_answers.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "pentatron/base/error.h"
#include "pentatron/base/json.h"

namespace pentatron::data {

namespace {

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

/// Bytes of the marker that a text begins with, such as <|end|>, </s> or [/INST]; 0: it begins with
/// something else.
size_t marker_bytes(std::string_view text) {
  if (text.starts_with('<')) {
    const size_t end = text.find_first_of("<> \t\r\n", 1);
    return end != std::string_view::npos && end > 1 && text[end] == '>' ? end + 1 : 0;
  }
  if (!text.starts_with('[')) return 0;
  const size_t begin = text.substr(1).starts_with('/') ? 2 : 1;
  const size_t end =
      text.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_", begin);
  return end != std::string_view::npos && end > begin && text[end] == ']' ? end + 1 : 0;
}

constexpr const char* kBlanks = " \t\r\n";

bool is_blank(std::string_view text) {
  return text.find_first_not_of(kBlanks) == std::string_view::npos;
}

/// Whether there are markers in a text and nothing else but white space.
bool has_only_markers(std::string_view text) {
  if (is_blank(text)) return false;
  for (;;) {
    text.remove_prefix(std::min(text.find_first_not_of(kBlanks), text.size()));
    if (text.empty()) return true;
    const size_t bytes = marker_bytes(text);
    if (bytes == 0) return false;
    text.remove_prefix(bytes);
  }
}

/// Behind the words of `prompt` at the beginning of `text`, whatever white space stands between
/// them, and behind what both have of the white space that follows.
std::optional<size_t> behind_words(std::string_view text, std::string_view prompt) {
  size_t at = 0;
  for (size_t next = prompt.find_first_not_of(kBlanks); next != std::string_view::npos;) {
    const size_t end = std::min(prompt.find_first_of(kBlanks, next), prompt.size());
    const std::string_view word = prompt.substr(next, end - next);
    at = std::min(text.find_first_not_of(kBlanks, at), text.size());
    if (!text.substr(at).starts_with(word)) return std::nullopt;
    at += word.size();
    next = prompt.find_first_not_of(kBlanks, end);
    if (next == std::string_view::npos)
      at += static_cast<size_t>(std::ranges::mismatch(text.substr(at), prompt.substr(end)).in2 -
                                prompt.substr(end).begin());
  }
  return at;
}

/// `text` with the mark behind its last character that is not white space.
std::string marked_text(const std::string& text) {
  const size_t last = text.find_last_not_of(kBlanks);
  std::string marked = text;
  return marked.insert(last == std::string::npos ? 0 : last + 1, kMark);
}

using At = OrderedJson::json_pointer;

/// The texts in a value, most nested in lists and objects.
void add_texts(const OrderedJson& value, const At& at, std::vector<At>& texts) {
  if (value.is_string()) texts.push_back(at);
  if (value.is_object())
    for (const auto& [name, member] : value.items()) add_texts(member, at / name, texts);
  if (value.is_array())
    for (size_t i = 0; i < value.size(); ++i) add_texts(value[i], at / i, texts);
}

/// Places in a message that a template may write last, most likely first.
std::vector<At> texts_of(const OrderedJson& message) {
  std::vector<At> texts;
  const auto add = [&](const At& at) {
    if (message.contains(at) && message[at].is_string()) texts.push_back(at);
  };
  add(At("/content"));
  if (message.contains("content") && message["content"].is_array())
    for (size_t i = message["content"].size(); i-- > 0;) add(At("/content") / i / "text");
  if (message.contains("tool_calls") && message["tool_calls"].is_array())
    for (size_t i = message["tool_calls"].size(); i-- > 0;) {
      add(At("/tool_calls") / i / "function" / "name");
      add(At("/tool_calls") / i / "name");
      const At arguments = At("/tool_calls") / i / "function" / "arguments";
      if (message.contains(arguments)) add_texts(message[arguments], arguments, texts);
    }
  for (const char* thoughts : {"/reasoning_content", "/thinking", "/reasoning"}) add(At(thoughts));
  return texts;
}

class Locator {
 public:
  Locator(const OrderedJson& messages, const std::string& whole, const RenderSome& render)
      : messages_(messages), whole_(whole), render_(render) {}

  std::vector<TextSpan> answers() {
    std::vector<TextSpan> answers;
    OrderedJson before = OrderedJson::array();
    const auto is_of_user = [](const OrderedJson& message) { return message["role"] == "user"; };
    for (size_t i = 0; i < messages_.size(); ++i) {
      if (messages_[i]["role"] == "assistant") {
        std::optional<TextSpan> found = by_difference(before, i);
        if (!found) found = by_mark(before, i);
        if (!found) found = by_words(before, i);
        if (!found || found->begin < done_)
          raise<DataError>("the chat template changes earlier text when a message is added, and "
                           "the answer in message {} cannot be located{}",
                           i + 1,
                           std::ranges::any_of(before, is_of_user)
                               ? ""
                               : "\n  try: conversations with a message of the user before the "
                                 "first answer");
        answers.push_back(*found);
        done_ = found->end;
      }
      before.push_back(messages_[i]);
    }
    return answers;
  }

  /// The beginning of an answer that the template writes behind every conversation, asked or not;
  /// empty if there is none, or if it is not clear where it begins.
  std::string tail() const {
    if (render_(messages_, true) != whole_) return {};
    const auto answer = last_of("assistant"), question = last_of("user");
    if (!answer || !question) return {};
    OrderedJson messages = upto_marked(*answer);
    const auto last = rest_behind_mark(messages, false),
               asked = rest_behind_mark(upto_marked(*question), false);
    messages.push_back({{"role", "user"}, {"content", kMark}});
    const auto followed = rest_behind_mark(messages, false);
    if (!last || !asked || !followed || !begins_answers()) return {};
    // `last` is the end of an answer and the tail; both messages share the tail, and the end stays
    // when a question follows.
    const auto most = static_cast<size_t>(
        std::ranges::mismatch(*last, followed->substr(0, followed->find(kMark))).in1 -
        last->begin());
    if (most == last->size()) return {}; // what only ends the message
    const auto least = static_cast<size_t>(
        last->rend() -
        std::mismatch(last->rbegin(), last->rend(), asked->rbegin(), asked->rend()).first);
    const std::string tail = tail_within(*last, least, most);
    if (!tail.empty()) return tail;
    messages.erase(messages.size() - 1);
    const std::string end = end_before_question(messages);
    return !end.empty() && last->starts_with(end) && end.size() <= most ? last->substr(end.size())
                                                                        : std::string();
  }

 private:
  std::optional<size_t> last_of(std::string_view role) const {
    for (size_t i = messages_.size(); i-- > 0;)
      if (messages_[i]["role"] == role && messages_[i].contains("content") &&
          messages_[i]["content"].is_string() &&
          !is_blank(messages_[i]["content"].get_ref<const std::string&>()))
        return i;
    return std::nullopt;
  }

  /// The messages to this one, with the mark in it.
  OrderedJson upto_marked(size_t i) const {
    OrderedJson messages = OrderedJson::array();
    for (size_t k = 0; k < i; ++k) messages.push_back(messages_[k]);
    messages.push_back(with_mark(i, At("/content")));
    return messages;
  }

  /// Whether every answer begins behind what the template writes for the messages before it.
  bool begins_answers() const {
    OrderedJson before = OrderedJson::array();
    for (const OrderedJson& message : messages_) {
      if (message["role"] == "assistant" && !before.empty()) {
        const std::optional<std::string> text = render_(before, false);
        if (!text || !whole_.starts_with(*text)) return false;
      }
      before.push_back(message);
    }
    return true;
  }

  /// What begins in bytes [least, most] of `last`: at the first of them, with a line or behind a
  /// marker. Of several places, the one with the marker that the first message begins with.
  std::string tail_within(const std::string& last, size_t least, size_t most) const {
    constexpr size_t kLongest = 4096; // no beginning of an answer is so long
    std::vector<std::string_view> tails;
    if (last.size() - std::min(least, last.size()) > kLongest) return {};
    for (size_t at = least; at <= most; ++at) {
      const bool begins =
          at == least || last[at - 1] == '\n' || last[at - 1] == '>' || last[at - 1] == ']';
      if (begins && !is_blank(last.substr(at, 1)))
        tails.push_back(std::string_view(last).substr(at));
    }
    if (tails.size() == 1) return std::string(tails[0]);
    std::string_view text = whole_;
    for (size_t bytes = marker_bytes(text); bytes > 0; bytes = marker_bytes(text)) {
      const std::string_view marker = text.substr(0, bytes);
      const auto same = [&](std::string_view tail) { return tail.starts_with(marker); };
      if (std::ranges::count_if(tails, same) == 1)
        return std::string(*std::ranges::find_if(tails, same));
      text.remove_prefix(bytes);
    }
    return {};
  }

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

  /// The same where the beginning of an answer has other white space than its message.
  std::optional<TextSpan> by_words(const OrderedJson& before, size_t i) const {
    const auto plain = render_(before, false), prompt = render_(before, true);
    if (!plain || !prompt || !prompt->starts_with(*plain) ||
        is_blank(prompt->substr(plain->size())))
      return std::nullopt;
    OrderedJson with = before;
    with.push_back(messages_[i]);
    const std::optional<std::string> after = render_(with, false);
    if (!after || !after->starts_with(*plain) || !whole_.starts_with(*after)) return std::nullopt;
    const auto begin =
        behind_words(std::string_view(*after).substr(plain->size()), prompt->substr(plain->size()));
    return begin ? std::optional(TextSpan{plain->size() + *begin, after->size()}) : std::nullopt;
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
      auto end = std::optional(whole_.size());
      if (i + 1 < messages_.size()) {
        end = end_of(before, i, at, prompt, *content_end);
        if (!end) end = end_without_calls(before, i, prompt);
      }
      if (!end || !has_all(i, {*begin, *end})) return std::nullopt;
      return TextSpan{*begin, *end};
    }
    return std::nullopt;
  }

  /// Whether no text of the message stands elsewhere.
  bool has_all(size_t i, TextSpan span) const {
    // Each is looked for in a rendering of its own: of very many, the first and the last ones.
    constexpr std::ptrdiff_t kFew = 16;
    std::vector<At> texts = texts_of(messages_[i]);
    if (std::ssize(texts) > 2 * kFew) texts.erase(texts.begin() + kFew, texts.end() - kFew);
    return std::ranges::all_of(texts, [&](const At& at) {
      if (is_blank(messages_[i][at].get_ref<const std::string&>())) return true;
      const auto place = place_in_whole(i, at);
      return !place || (*place > span.begin && *place <= span.end);
    });
  }

  OrderedJson with_mark(size_t i, const At& at) const {
    OrderedJson message = messages_[i];
    message[at] = marked_text(message[at].get<std::string>());
    return message;
  }

  /// The byte of the whole text where the mark in a message would stand, if it stands in one place
  /// and changes nothing else.
  std::optional<size_t> place_in_whole(size_t i, const At& at) const {
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
          n > most && prompt.find_first_not_of(kBlanks) < n) {
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
  std::optional<size_t> end_of(const OrderedJson& before, size_t i, const At& at,
                               const std::string& prompt, size_t content_end) const {
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
    if (common == last->size() && is_blank(*last)) {
      const std::string end = end_before_question(messages);
      return content_end + (text.starts_with(end) ? std::max(common, end.size()) : common);
    }
    if (common == last->size() || (common > 0 && common == text.size()))
      return content_end + common;
    // An end that only the last message has, in place of what follows others.
    const std::string_view own = std::string_view(*last).substr(common),
                           other = text.substr(common);
    const size_t size = marker_bytes(own), other_size = marker_bytes(other);
    if (common == 0 || size == 0 || other_size == 0 ||
        own.substr(0, size) == other.substr(0, other_size))
      return std::nullopt;
    return content_end + common;
  }

  /// What ends the message with the mark, the last of these, if a question follows: the markers
  /// before what a question begins with.
  std::string end_before_question(OrderedJson messages) const {
    const OrderedJson question = {{"role", "user"}, {"content", kMark}};
    messages.push_back(question);
    const auto rest = rest_behind_mark(messages, false);
    const auto alone = render_(OrderedJson::array({question}), false);
    const size_t end = rest ? rest->find(kMark) : std::string::npos,
                 first = alone ? alone->find(kMark) : std::string::npos;
    if (end == std::string::npos || first == std::string::npos) return {};
    size_t same = 0;
    while (same < end && same < first && (*rest)[end - same - 1] == (*alone)[first - same - 1])
      ++same;
    size_t own = end - same;
    if (!is_blank(rest->substr(0, own)) && !has_only_markers(rest->substr(0, own)))
      own = std::min(rest->find_first_of(">]", own), end - 1) + 1; // the last marker to its end
    const bool others_begin = !is_blank(rest->substr(own, end - own));
    return others_begin && has_only_markers(rest->substr(0, own)) ? rest->substr(0, own)
                                                                  : std::string();
  }

  /// The end of a message with tool calls that a template writes differently in the last message:
  /// the next message begins as it does behind the same message without calls.
  std::optional<size_t> end_without_calls(const OrderedJson& before, size_t i,
                                          const std::string& prompt) const {
    if (!messages_[i].contains("tool_calls")) return std::nullopt;
    const At content("/content");
    OrderedJson messages = messages_;
    messages[i].erase("tool_calls");
    messages[i][content] = "called";
    const std::optional<std::string> whole = render_(messages, false);
    if (!whole) return std::nullopt;
    const Locator plain(messages, *whole, render_);
    const auto place = plain.place_in_whole(i, content);
    const auto end = place ? plain.end_of(before, i, content, prompt, *place) : std::nullopt;
    if (!end) return std::nullopt;
    for (const At& at : texts_of(messages[i + 1])) {
      const auto next = place_in_whole(i + 1, at), plain_next = plain.place_in_whole(i + 1, at);
      if (!next || !plain_next || *plain_next < *end) continue;
      const std::string_view begin = std::string_view(*whole).substr(*end, *plain_next - *end);
      if (std::string_view(whole_).substr(0, *next).ends_with(begin)) return *next - begin.size();
    }
    return std::nullopt;
  }

  const OrderedJson& messages_;
  const std::string& whole_;
  const RenderSome& render_;
  size_t done_ = 0; ///< the end of the answer before
};

} // namespace

std::vector<TextSpan> locate_answers(const OrderedJson& messages, const std::string& whole,
                                     const RenderSome& render) {
  Locator locator(messages, whole, render);
  const std::string tail = locator.tail();
  if (tail.empty() || !whole.ends_with(tail)) return locator.answers();
  const RenderSome without = [&](const OrderedJson& some, bool prompt) {
    std::optional<std::string> text = render(some, prompt);
    if (!text || !text->ends_with(tail)) return std::optional<std::string>();
    if (!prompt) text->resize(text->size() - tail.size());
    return text;
  };
  return Locator(messages, whole.substr(0, whole.size() - tail.size()), without).answers();
}

} // namespace pentatron::data
