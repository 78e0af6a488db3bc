/// The program's server, and a client of it over a real socket.
#pragma once

#include <filesystem>
#include <regex>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "pentatron/base/json.h"
#include "tests/cli/letter_model.h"
#include "tests/cli/started_program.h"
#include "tests/serve/http/client.h"

namespace pentatron::test {

struct Reply {
  int status = 0;
  std::string head, text;
  Json body() const { return parse_json(text, "body"); }
};

class ServedProgram : public StartedProgram {
 protected:
  std::string program() const override { return PENTATRON_PREPARED_PROGRAM; }
  void TearDown() override {
    if (child_ > 0) stop();
  }
  void start_server(const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments = {"serve", "model",         "--port",
                                          "0",     "kernels=order", "train.num_threads=1"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    std::filesystem::remove(folder / "out"); // of an earlier server
    child_ = start(arguments);
    std::smatch match;
    std::string out;
    ASSERT_TRUE(within(30, [&] {
      out = content_of(folder / "out");
      return std::regex_search(out, match, std::regex("http://[^ ]*:([0-9]+)\n"));
    })) << content_of(folder / "err");
    port = static_cast<uint16_t>(std::stoi(match[1]));
  }
  Result stop(int number = SIGTERM) {
    signal(number);
    return finish();
  }
  void signal(int number) const { ::kill(child_, number); }
  /// After it was told to stop.
  Result finish() {
    const Result result = StartedProgram::finish(child_);
    child_ = -1;
    return result;
  }
  Reply ask(const std::string& method, const std::string& path, const std::string& body = "",
            const std::string& headers = "") const {
    RawClient client(port);
    client.send(fmt::format("{} {} HTTP/1.1\r\nHost: localhost:{}\r\nConnection: close\r\n"
                            "Content-Type: application/json\r\nContent-Length: {}\r\n{}\r\n{}",
                            method, path, port, body.size(), headers, body));
    const std::string all = client.read_all(20);
    Reply reply;
    const size_t end = all.find("\r\n\r\n");
    if (end == std::string::npos) return reply;
    reply.status = std::stoi(all.substr(9, 3));
    reply.head = all.substr(0, end + 2);
    reply.text = all.substr(end + 4);
    return reply;
  }
  Reply complete(const Json& request) const {
    return ask("POST", "/v1/completions", dump_json(request));
  }
  Reply chat(const Json& request) const {
    return ask("POST", "/v1/chat/completions", dump_json(request));
  }
  /// The events of a streamed answer.
  static std::vector<Json> events(const std::string& text) {
    std::vector<Json> all;
    for (size_t at = text.find("data: {"); at != std::string::npos; at = text.find("data: {", at)) {
      const size_t end = text.find("\n\n", at);
      all.push_back(parse_json(text.substr(at + 6, end - at - 6), "event"));
      at = end;
    }
    return all;
  }

  uint16_t port = 0;

 private:
  pid_t child_ = -1;
};

} // namespace pentatron::test
