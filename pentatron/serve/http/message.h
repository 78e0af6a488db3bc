/// HTTP requests and responses, as far as an API needs them, without the library that parses them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pentatron::serve::http {

struct Request {
  std::string method;                         ///< "GET", "POST", ...
  std::string path;                           ///< decoded, without the query
  std::map<std::string, std::string> headers; ///< by name in lower case; of several the last
  std::string body;

  /// Empty if the header is missing.
  std::string_view header(const std::string& name) const;
};

struct Response {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers = {};
};

/// {"error": {"message", "type", "param", "code"}}, as OpenAI's API has it. The type follows from
/// the status; `param` and `code` are null if they are empty.
Response error_response(int status, std::string_view message, std::string_view param = {},
                        std::string_view code = {});
/// The same JSON object without a status, for errors within a stream.
std::string error_body(int status, std::string_view message, std::string_view param,
                       std::string_view code);

/// What a request line names: "/path?query", "http://authority/path?query" or "*" (RFC 9112,
/// section 3.2).
struct Target {
  std::string authority; ///< empty if only a path is named
  std::string path;      ///< decoded, without the query
};
/// nullopt if it has another form, or its path has an invalid escape or a NUL.
std::optional<Target> parse_target(std::string_view text);

/// "Not Found" of 404.
std::string_view reason_of(int status);

/// Who may send requests.
struct Guard {
  std::string token;                   ///< that a client must send; empty: none
  std::vector<std::string> hosts;      ///< names that the Host header may have; empty: any
  std::vector<std::string> open_paths; ///< that need no token
};

/// The answer to a request that is refused because of its headers, before its body is read: a Host
/// that is not the server's (DNS rebinding), an Origin of another site, or no token. Tokens are
/// compared in a time that does not depend on their content.
std::optional<Response> refuse(const Request& head, const Guard& guard);

/// Whether the texts are equal, in a time that depends on the length of `given` only.
bool equal_in_constant_time(std::string_view expected, std::string_view given);

/// The host of "host:port" and "[::1]:port", in lower case.
std::string host_of(std::string_view authority);

} // namespace pentatron::serve::http
