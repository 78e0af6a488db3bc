#include <charconv>
#include <ctime>

#include "pentatron/data/tokenizer/chat_template.h"

namespace pentatron::data::tokenizer {

std::optional<std::tm> read_date(std::string_view text) {
  constexpr size_t kSize = 10; // YYYY-MM-DD
  std::tm date{};
  if (text.size() != kSize || text[4] != '-' || text[7] != '-') return std::nullopt;
  const auto number = [&](size_t begin, size_t size, int& out) {
    const char* const end = text.data() + begin + size;
    return std::from_chars(text.data() + begin, end, out).ptr == end;
  };
  if (!number(0, 4, date.tm_year) || !number(5, 2, date.tm_mon) || !number(8, 2, date.tm_mday) ||
      date.tm_year < 1)
    return std::nullopt;
  date.tm_year -= 1900;
  --date.tm_mon;
  std::tm normal = date; // with the day of the week; the 30th of February becomes another day
  ::timegm(&normal);
  if (normal.tm_mon != date.tm_mon || normal.tm_mday != date.tm_mday) return std::nullopt;
  return normal;
}

std::tm local_time() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::localtime_r(&now, &parts);
  return parts;
}

} // namespace pentatron::data::tokenizer
