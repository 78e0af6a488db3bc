#include "pentatron/serve/http/message.h"

#include <algorithm>
#include <cctype>
#include <charconv>

#include <fmt/format.h>

#include "pentatron/base/json.h"
#include "pentatron/base/text.h"

namespace pentatron::serve::http {

namespace {

std::string lower_case(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return lower;
}

std::string_view type_of(int status) {
  switch (status) {
  case 401:
    return "authentication_error";
  case 403:
    return "permission_error";
  case 429:
    return "rate_limit_error";
  default:
    return status >= 500 ? "server_error" : "invalid_request_error";
  }
}

Json or_null(std::string_view text) {
  return text.empty() ? Json() : Json(std::string(text));
}

/// "a b" of "a%20b".
std::optional<std::string> decoded(std::string_view path) {
  std::string text;
  for (size_t i = 0; i < path.size(); ++i) {
    if (path[i] != '%') {
      text += path[i];
      continue;
    }
    const std::string_view digits = path.substr(i + 1, 2);
    const char* const end = digits.data() + digits.size();
    unsigned byte = 0;
    if (digits.size() != 2 || std::from_chars(digits.data(), end, byte, 16).ptr != end || byte == 0)
      return std::nullopt;
    text += static_cast<char>(byte);
    i += 2;
  }
  return text;
}

} // namespace

std::string_view Request::header(const std::string& name) const {
  const auto found = headers.find(name);
  return found == headers.end() ? std::string_view() : std::string_view(found->second);
}

std::string error_body(int status, std::string_view message, std::string_view param,
                       std::string_view code) {
  return dump_json({{"error",
                     {{"message", std::string(message)},
                      {"type", std::string(type_of(status))},
                      {"param", or_null(param)},
                      {"code", or_null(code)}}}});
}

Response error_response(int status, std::string_view message, std::string_view param,
                        std::string_view code) {
  Response response{.status = status, .body = error_body(status, message, param, code)};
  if (status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  if (status == 429 || status == 503) response.headers.emplace_back("Retry-After", "1");
  return response;
}

std::optional<Target> parse_target(std::string_view text) {
  constexpr std::string_view kScheme = "http://";
  Target target;
  if (text == "*") return Target{.authority = {}, .path = "*"};
  text = text.substr(0, text.find('?'));
  if (lower_case(text.substr(0, kScheme.size())) == kScheme) {
    text.remove_prefix(kScheme.size());
    target.authority = text.substr(0, text.find('/'));
    if (target.authority.empty() || target.authority.find('@') != std::string::npos)
      return std::nullopt;
    text.remove_prefix(target.authority.size());
    if (text.empty()) text = "/";
  }
  if (!text.starts_with('/')) return std::nullopt;
  std::optional<std::string> path = decoded(text);
  if (!path) return std::nullopt;
  target.path = std::move(*path);
  return target;
}

std::string_view reason_of(int status) {
  switch (status) {
  case 200:
    return "OK";
  case 400:
    return "Bad Request";
  case 401:
    return "Unauthorized";
  case 403:
    return "Forbidden";
  case 404:
    return "Not Found";
  case 405:
    return "Method Not Allowed";
  case 408:
    return "Request Timeout";
  case 413:
    return "Content Too Large";
  case 415:
    return "Unsupported Media Type";
  case 417:
    return "Expectation Failed";
  case 421:
    return "Misdirected Request";
  case 429:
    return "Too Many Requests";
  case 431:
    return "Request Header Fields Too Large";
  case 500:
    return "Internal Server Error";
  case 501:
    return "Not Implemented";
  case 503:
    return "Service Unavailable";
  default:
    return "Status";
  }
}

bool equal_in_constant_time(std::string_view expected, std::string_view given) {
  unsigned different = expected.size() == given.size() ? 0 : 1;
  for (size_t i = 0; i < given.size(); ++i) {
    const char other = expected.empty() ? '\0' : expected[i % expected.size()];
    different |= static_cast<unsigned>(static_cast<unsigned char>(given[i] ^ other));
  }
  return different == 0;
}

std::string host_of(std::string_view authority) {
  authority = trim(authority);
  if (authority.starts_with('[')) {
    const size_t end = authority.find(']');
    return lower_case(authority.substr(0, end == std::string_view::npos ? end : end + 1));
  }
  return lower_case(authority.substr(0, authority.find(':')));
}

std::optional<Response> refuse(const Request& head, const Guard& guard) {
  const std::string_view host = head.header("host"), origin = head.header("origin");
  if (!guard.hosts.empty() && std::ranges::find(guard.hosts, host_of(host)) == guard.hosts.end())
    return error_response(
        421, fmt::format("the Host header \"{}\" is not a name of this server", excerpt(host)));
  if (!origin.empty()) {
    const size_t scheme = origin.find("://");
    const std::string_view authority =
        scheme == std::string_view::npos ? std::string_view() : origin.substr(scheme + 3);
    if (authority.empty() || lower_case(authority) != lower_case(trim(host)))
      return error_response(
          403, fmt::format("requests from pages of \"{}\" are not allowed", excerpt(origin)));
  }
  if (guard.token.empty() ||
      std::ranges::find(guard.open_paths, head.path) != guard.open_paths.end())
    return std::nullopt;
  const std::string_view given = head.header("authorization");
  if (lower_case(given.substr(0, 7)) != "bearer ")
    return error_response(401,
                          "the Authorization header must be \"Bearer TOKEN\" with the "
                          "server's token",
                          {}, "missing_api_key");
  if (!equal_in_constant_time(guard.token, trim(given.substr(7))))
    return error_response(401, "the token in the Authorization header is not the server's", {},
                          "invalid_api_key");
  return std::nullopt;
}

} // namespace pentatron::serve::http
