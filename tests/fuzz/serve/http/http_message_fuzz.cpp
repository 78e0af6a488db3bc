// Any headers are let through or refused with a status of their own; any target has a path or is
// invalid.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "pentatron/serve/http/message.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace pentatron::serve::http;
  const std::string text(reinterpret_cast<const char*>(data), size);
  // Four lines: host, origin, authorization, path.
  Request head;
  size_t at = 0;
  for (const char* name : {"host", "origin", "authorization", "path"}) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string value = text.substr(at, end - at);
    if (std::string_view(name) == "path")
      head.path = value;
    else
      head.headers[name] = value;
    at = std::min(end + 1, text.size());
  }
  if (const auto target = parse_target(head.path)) {
    head.path = target->path;
    if (!head.path.starts_with('/') && head.path != "*") __builtin_trap();
    if (head.path.find('\0') != std::string::npos && text.find('\0') == std::string::npos)
      __builtin_trap();
  }
  const Guard guard{.token = "0123456789abcdef", .hosts = {"localhost"}, .open_paths = {"/health"}};
  if (const auto refusal = refuse(head, guard)) {
    if (refusal->status != 401 && refusal->status != 403 && refusal->status != 421)
      __builtin_trap();
  } else if (host_of(head.header("host")) != "localhost") {
    __builtin_trap();
  }
  return 0;
}
