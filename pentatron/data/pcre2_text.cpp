#define PCRE2_CODE_UNIT_WIDTH 8
#include "pentatron/data/pcre2_text.h"

#include <pcre2.h>

namespace pentatron::data {

std::string pcre2_sentence(int code) {
  PCRE2_UCHAR text[256] = {};
  pcre2_get_error_message(code, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

} // namespace pentatron::data
