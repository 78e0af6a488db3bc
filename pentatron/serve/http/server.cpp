// The only file that includes Boost. Everything of a connection runs on its strand.
#include "pentatron/serve/http/server.h"

#include <algorithm>
#include <cctype>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include <boost/asio/bind_executor.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/string.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>

#include <fmt/format.h>

#include "pentatron/base/descriptors.h"
#include "pentatron/base/error.h"
#include "pentatron/base/log.h"
#include "pentatron/base/text.h"

namespace pentatron::serve::http {

namespace net = boost::asio;
namespace beast = boost::beast;
namespace bhttp = boost::beast::http;
using boost::system::error_code;
using net::ip::tcp;

namespace {

constexpr size_t kReadAhead = 16 << 10;     ///< bytes of further requests that are read meanwhile
constexpr int64_t kRefusedConnections = 64; ///< that are told so at the same time

std::string head_of(const Response& response, bool keep_alive, std::string_view length) {
  std::string text = fmt::format("HTTP/1.1 {} {}\r\nContent-Type: {}\r\n{}\r\n", response.status,
                                 reason_of(response.status), response.content_type, length);
  text += fmt::format("Connection: {}\r\nCache-Control: no-store\r\n"
                      "X-Content-Type-Options: nosniff\r\n",
                      keep_alive ? "keep-alive" : "close");
  for (const auto& [name, value] : response.headers) text += fmt::format("{}: {}\r\n", name, value);
  return text + "\r\n";
}

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

class Connection;

/// What connections share.
struct Shared {
  ServerOptions options;
  Server::Calls calls;
  std::mutex mutex;
  std::condition_variable changed;
  std::set<Connection*> all;          ///< under the mutex
  std::atomic<bool> stopping = false; ///< connections are closed after their next answer
  std::atomic<bool> closing = false;  ///< and those without a request at once
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(tcp::socket socket, std::shared_ptr<Shared> shared, bool refused)
      : socket_(std::move(socket)), shared_(std::move(shared)), timer_(socket_.get_executor()),
        write_timer_(socket_.get_executor()), refused_(refused) {
    int64_t count = 0;
    {
      const std::lock_guard lock(shared_->mutex);
      shared_->all.insert(this);
      count = std::ssize(shared_->all);
    }
    if (shared_->calls.connections) shared_->calls.connections(count);
  }
  ~Connection() {
    int64_t count = 0;
    {
      const std::lock_guard lock(shared_->mutex);
      shared_->all.erase(this);
      count = std::ssize(shared_->all);
      shared_->changed.notify_all();
    }
    if (shared_->calls.connections) shared_->calls.connections(count);
  }
  Connection(const Connection&) = delete;

  void start() {
    net::post(socket_.get_executor(), [self = shared_from_this()] {
      error_code ignored;
      self->socket_.set_option(tcp::no_delay(true), ignored);
      if (self->refused_) {
        self->answer_and_close(error_response(503, "too many connections are open"));
      } else {
        self->wait_for_request();
      }
    });
  }

  /// From any thread.
  void close_if_idle() {
    net::post(socket_.get_executor(), [self = shared_from_this()] {
      if (self->state_ == State::kIdle) self->close();
    });
  }
  void close_now() {
    net::post(socket_.get_executor(), [self = shared_from_this()] { self->close(); });
  }

  // Of the exchange, from any thread; `number` is that of the request.
  void respond(uint64_t number, Response response) {
    on_strand(number, [response = std::move(response)](Connection& c) {
      if (c.streaming_) return;
      c.send_response(response);
      c.finish_answer();
    });
  }
  void begin(uint64_t number, const std::string& content_type) {
    on_strand(number, [content_type](Connection& c) {
      if (c.streaming_) return;
      c.streaming_ = true;
      const Response response{.content_type = content_type, .body = {}};
      if (!c.chunked_ || c.shared_->stopping) c.keep_alive_ = false;
      c.note_answer(200);
      c.send(head_of(response, c.keep_alive_,
                     c.chunked_ ? "Transfer-Encoding: chunked" : "X-Accel-Buffering: no"));
    });
  }
  void write(uint64_t number, std::string piece) {
    if (piece.empty()) return;
    on_strand(number, [piece = std::move(piece)](Connection& c) mutable {
      if (!c.streaming_ || c.without_content()) return;
      c.send(c.chunked_ ? fmt::format("{:x}\r\n{}\r\n", piece.size(), piece) : std::move(piece));
    });
  }
  void end(uint64_t number) {
    on_strand(number, [](Connection& c) {
      if (!c.streaming_) return;
      if (c.chunked_ && !c.without_content()) c.send("0\r\n\r\n");
      c.finish_answer();
    });
  }
  /// Nobody will answer any more.
  void abandon(uint64_t number) {
    on_strand(number, [](Connection& c) {
      if (c.streaming_) return c.close();
      c.answer_and_close(error_response(500, "the server gave no answer"));
    });
  }

 private:
  enum class State : uint8_t { kIdle, kReading, kAnswering, kLingering, kClosed };

  template <class F> void on_strand(uint64_t number, F work) {
    net::post(socket_.get_executor(), [self = shared_from_this(), number,
                                       work = std::move(work)]() mutable {
      if (self->number_ == number && self->state_ == State::kAnswering && !self->answered_)
        work(*self);
    });
  }

  void arm(net::steady_timer& timer, double seconds, void (Connection::*expired)()) {
    timer.expires_after(milliseconds(seconds));
    timer.async_wait([self = shared_from_this(), expired](error_code error) {
      if (!error) (self.get()->*expired)();
    });
  }

  /// Reads the first bytes of a request, or sees the end of the connection; also while an answer is
  /// being made, so that at most one such read is under way.
  void watch() {
    if (watching_ || buffer_.size() >= kReadAhead) return;
    watching_ = true;
    socket_.async_read_some(buffer_.prepare(4096),
                            [self = shared_from_this()](error_code error, size_t bytes) {
                              self->watching_ = false;
                              self->buffer_.commit(bytes);
                              self->saw(error);
                            });
  }

  void saw(error_code error) {
    if (state_ == State::kClosed) return;
    const bool interrupted = error == net::error::operation_aborted && buffer_.size() > 0;
    if (error && !(interrupted && state_ == State::kIdle)) return close();
    if (state_ == State::kIdle) {
      look_for_request();
    } else if (state_ == State::kAnswering) {
      watch();
    } else if (state_ == State::kLingering) {
      linger();
    }
  }

  void wait_for_request() {
    if (shared_->closing) return close();
    state_ = State::kIdle;
    arm(timer_, shared_->options.idle_timeout_s, &Connection::close);
    if (!watching_) return look_for_request();
    error_code ignored;
    if (buffer_.size() > 0) socket_.cancel(ignored); // there may be a request; saw() goes on
  }

  /// Ignores empty lines before a request (RFC 9112, section 2.2). No read may be under way,
  /// because it would write to where the buffer was.
  void look_for_request() {
    const auto bytes = [this] {
      return std::string_view(static_cast<const char*>(buffer_.cdata().data()), buffer_.size());
    };
    while (bytes().starts_with("\r\n")) buffer_.consume(2);
    if (bytes().empty() || bytes() == "\r") return watch();
    read_request();
  }

  void read_request() {
    state_ = State::kReading;
    ++number_;
    head_ = {};
    keep_alive_ = false;
    chunked_ = streaming_ = false;
    arm(timer_, shared_->options.request_timeout_s, &Connection::too_slow);
    parser_.emplace();
    parser_->header_limit(shared_->options.max_header_bytes);
    parser_->body_limit(shared_->options.max_body_bytes);
    bhttp::async_read_header(socket_, buffer_, *parser_,
                             [self = shared_from_this()](error_code error, size_t) {
                               if (self->state_ == State::kReading) self->read_head(error);
                             });
  }

  void too_slow() {
    if (state_ != State::kReading) return;
    error_code ignored;
    socket_.cancel(ignored);
    note_method();
    answer_and_close(error_response(408, "the request did not arrive in time"));
  }

  /// As soon as its line was read, since every answer to HEAD is without content.
  void note_method() {
    if (parser_) head_.method = std::string(parser_->get().method_string());
  }

  void read_head(error_code error) {
    note_method();
    if (error) return refuse_broken(error);
    const auto& message = parser_->get();
    for (const auto& field : message) {
      std::string name(field.name_string());
      for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
      head_.headers[name] = std::string(field.value());
    }
    keep_alive_ = message.keep_alive();
    chunked_ = message.version() >= 11;
    if (auto refusal = refuse_head()) return answer_and_close(*refusal);
    const std::string_view expects = head_.header("expect");
    if (!expects.empty()) send("HTTP/1.1 100 Continue\r\n\r\n");
    bhttp::async_read(socket_, buffer_, *parser_,
                      [self = shared_from_this()](error_code failed, size_t) {
                        if (self->state_ == State::kReading) self->read_body(failed);
                      });
  }

  /// The answer to a request whose body is not read. Also finds the path.
  std::optional<Response> refuse_head() {
    const auto& message = parser_->get();
    const Guard& guard = shared_->options.guard;
    const auto target = parse_target({message.target().data(), message.target().size()});
    if (target) head_.path = target->path;
    if (std::distance(message.begin(), message.end()) > shared_->options.max_headers)
      return error_response(431, "the request has too many headers");
    if (message.count(bhttp::field::host) > 1 ||
        (message.version() >= 11 && message.count(bhttp::field::host) == 0))
      return error_response(400, "the request must have one Host header");
    // Where a body ends must be certain: what follows is the next request (RFC 9112, section 6.3).
    const size_t codings = message.count(bhttp::field::transfer_encoding);
    if (codings > 0 && message.version() < 11)
      return error_response(400, "an HTTP/1.0 request cannot have a Transfer-Encoding header");
    if (codings > 1 ||
        (codings == 1 && !beast::iequals(message[bhttp::field::transfer_encoding], "chunked")))
      return error_response(501, "the only supported Transfer-Encoding is \"chunked\"");
    if (!target)
      return error_response(400, "the request's target is not a valid path or http:// URL");
    if (auto refusal = refuse(head_, guard)) return refusal;
    if (target->authority.empty()) return std::nullopt;
    head_.headers["host"] = target->authority; // replaces the header (RFC 9112, section 3.2.2)
    return refuse(head_, guard);
  }

  void refuse_broken(error_code error) {
    const uint64_t most = shared_->options.max_body_bytes;
    if (error == bhttp::error::end_of_stream || error == bhttp::error::partial_message ||
        error.category() != make_error_code(bhttp::error::bad_method).category())
      return close();
    if (error == bhttp::error::body_limit)
      return answer_and_close(
          error_response(413, fmt::format("the body is longer than {} bytes", most)));
    if (error == bhttp::error::header_limit)
      return answer_and_close(
          error_response(431, fmt::format("the headers are longer than {} bytes",
                                          shared_->options.max_header_bytes)));
    answer_and_close(
        error_response(400, fmt::format("this is not an HTTP request: {}", error.message())));
  }

  void read_body(error_code error);

  bool without_content() const { return head_.method == "HEAD"; }

  void send_response(const Response& response) {
    note_answer(response.status);
    if (shared_->stopping) keep_alive_ = false;
    send(head_of(response, keep_alive_, fmt::format("Content-Length: {}", response.body.size())) +
         (without_content() ? "" : response.body));
  }

  void note_answer(int status) {
    if (shared_->calls.answered) shared_->calls.answered(head_, status);
  }

  /// With an answer that does not wait for the rest of the request.
  void answer_and_close(const Response& response) {
    state_ = State::kAnswering;
    keep_alive_ = false;
    send_response(response);
    finish_answer();
  }

  void send(std::string bytes) {
    if (state_ == State::kClosed) return;
    unsent_bytes_ += std::ssize(bytes);
    if (unsent_bytes_ > shared_->options.max_unsent_bytes) return close();
    unsent_.push_back(std::move(bytes));
    if (unsent_.size() == 1) write_next();
  }

  void write_next() {
    arm(write_timer_, shared_->options.write_timeout_s, &Connection::close);
    net::async_write(socket_, net::buffer(unsent_.front()),
                     [self = shared_from_this()](error_code error, size_t) {
                       self->write_timer_.cancel();
                       if (self->state_ == State::kClosed) return;
                       if (error) return self->close();
                       self->unsent_bytes_ -= std::ssize(self->unsent_.front());
                       self->unsent_.pop_front();
                       if (!self->unsent_.empty()) return self->write_next();
                       if (self->answered_) self->after_answer();
                     });
  }

  /// All of the answer is in the queue.
  void finish_answer() {
    answered_ = true;
    if (unsent_.empty()) after_answer();
  }

  void after_answer() {
    if (state_ == State::kClosed) return;
    answered_ = false;
    if (gone_) gone_.reset();
    if (keep_alive_) return wait_for_request();
    state_ = State::kLingering; // so that the client gets the answer before it sees a reset
    error_code ignored;
    socket_.shutdown(tcp::socket::shutdown_send, ignored);
    arm(timer_, shared_->stopping ? 0.5 : 2, &Connection::close);
    linger();
  }

  void linger() {
    buffer_.consume(buffer_.size());
    watch();
  }

  void close() {
    if (state_ == State::kClosed) return;
    state_ = State::kClosed;
    if (gone_) {
      *gone_ = true;
      gone_.reset();
      if (shared_->calls.client_gone) shared_->calls.client_gone();
    }
    error_code ignored;
    socket_.close(ignored);
    timer_.cancel();
    write_timer_.cancel();
  }

  tcp::socket socket_;
  std::shared_ptr<Shared> shared_;
  net::steady_timer timer_, write_timer_;
  beast::flat_buffer buffer_;
  std::optional<bhttp::request_parser<bhttp::string_body>> parser_;
  State state_ = State::kIdle;
  Request head_;
  uint64_t number_ = 0; ///< of the request
  bool refused_ = false;
  bool watching_ = false;
  bool keep_alive_ = false, chunked_ = false, streaming_ = false, answered_ = false;
  std::shared_ptr<std::atomic<bool>> gone_; ///< of the request that is being answered
  std::deque<std::string> unsent_;
  int64_t unsent_bytes_ = 0;
};

class ConnectionExchange final : public Exchange {
 public:
  ConnectionExchange(std::shared_ptr<Connection> connection, uint64_t number,
                     std::shared_ptr<const std::atomic<bool>> gone)
      : connection_(std::move(connection)), number_(number), gone_(std::move(gone)) {}
  ~ConnectionExchange() override {
    if (!done_) connection_->abandon(number_);
  }
  void respond(Response response) override {
    done_ = true;
    connection_->respond(number_, std::move(response));
  }
  void begin(const std::string& content_type) override {
    connection_->begin(number_, content_type);
  }
  void write(std::string piece) override { connection_->write(number_, std::move(piece)); }
  void end() override {
    done_ = true;
    connection_->end(number_);
  }
  std::shared_ptr<const std::atomic<bool>> gone() const override { return gone_; }

 private:
  std::shared_ptr<Connection> connection_;
  uint64_t number_;
  std::shared_ptr<const std::atomic<bool>> gone_;
  std::atomic<bool> done_ = false;
};

void Connection::read_body(error_code error) {
  if (error) return refuse_broken(error);
  timer_.cancel();
  state_ = State::kAnswering;
  gone_ = std::make_shared<std::atomic<bool>>(false);
  Request request = head_;
  request.body = std::move(parser_->get().body());
  parser_.reset();
  watch();
  auto exchange = std::make_shared<ConnectionExchange>(shared_from_this(), number_, gone_);
  try {
    shared_->calls.handle(std::move(request), exchange);
  } catch (const std::exception& failure) {
    log::error("a request to {} failed: {}", excerpt(head_.path), failure.what());
    exchange->respond(error_response(500, failure.what()));
  }
}

} // namespace

class Server::Impl {
 public:
  Impl(const ServerOptions& options, Calls calls)
      : shared_(std::make_shared<Shared>()), acceptor_(net::make_strand(context_)),
        pause_(acceptor_.get_executor()) {
    shared_->options = options;
    shared_->calls = std::move(calls);
    const tcp::endpoint endpoint(address_of(options), options.port);
    error_code error;
    acceptor_.open(endpoint.protocol(), error);
    if (!error) acceptor_.set_option(net::socket_base::reuse_address(true), error);
    if (!error) acceptor_.bind(endpoint, error);
    if (!error) acceptor_.listen(net::socket_base::max_listen_connections, error);
    require_descriptors(error.value());
    if (error)
      raise<ConfigError>("--port {} of {} cannot be used: {}\n  try: --port 0 for any free port",
                         options.port, options.address, error.message());
  }

  void start() {
    accept();
    for (int i = 0; i < shared_->options.threads; ++i)
      threads_.emplace_back([this] { context_.run(); });
  }

  uint16_t port() const { return acceptor_.local_endpoint().port(); }

  void begin_stop() { shared_->stopping = true; }

  void stop(double seconds) {
    begin_stop();
    shared_->closing = true;
    net::post(acceptor_.get_executor(), [this] {
      error_code ignored;
      acceptor_.close(ignored);
      pause_.cancel();
      for_each([](Connection& connection) { connection.close_if_idle(); });
    });
    {
      std::unique_lock lock(shared_->mutex);
      shared_->changed.wait_for(lock, milliseconds(seconds), [&] { return shared_->all.empty(); });
    }
    for_each([](Connection& connection) { connection.close_now(); });
    {
      std::unique_lock lock(shared_->mutex);
      shared_->changed.wait_for(lock, milliseconds(1), [&] { return shared_->all.empty(); });
    }
    context_.stop();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

 private:
  static net::ip::address address_of(const ServerOptions& options) {
    error_code error;
    const auto address = net::ip::make_address(options.address, error);
    if (error)
      raise<ConfigError>(
          "--listen {} is not an IP address of this machine\n  try: --listen 0.0.0.0 "
          "for all IPv4 addresses",
          options.address);
    return address;
  }

  template <class F> void for_each(F visit) {
    std::vector<std::shared_ptr<Connection>> alive;
    {
      const std::lock_guard lock(shared_->mutex);
      for (Connection* const one : shared_->all)
        if (auto connection = one->weak_from_this().lock()) alive.push_back(std::move(connection));
    }
    for (const auto& connection : alive) visit(*connection);
  }

  int64_t open_connections() {
    const std::lock_guard lock(shared_->mutex);
    return std::ssize(shared_->all);
  }

  void accept() {
    acceptor_.async_accept(
        net::make_strand(context_), [this](error_code error, tcp::socket socket) {
          if (!acceptor_.is_open()) return;
          if (error) { // no file descriptor left, for example: wait for some to be closed
            pause_.expires_after(std::chrono::milliseconds(100));
            pause_.async_wait([this](error_code) {
              if (acceptor_.is_open()) accept();
            });
            return;
          }
          const int64_t open = open_connections(), most = shared_->options.max_connections;
          if (open >= most && shared_->calls.refused) shared_->calls.refused();
          if (open < most + kRefusedConnections)
            std::make_shared<Connection>(std::move(socket), shared_, open >= most)->start();
          accept();
        });
  }

  net::io_context context_;
  std::shared_ptr<Shared> shared_;
  tcp::acceptor acceptor_;
  net::steady_timer pause_;
  std::vector<std::thread> threads_;
};

Server::Server(const ServerOptions& options, Calls calls) try
    : impl_(std::make_unique<Impl>(options, std::move(calls))) {
} catch (const boost::system::system_error& error) { // of the event loop
  require_descriptors(error.code().value());
  throw;
}
Server::~Server() {
  impl_->stop(0);
}

void Server::start() {
  impl_->start();
}
uint16_t Server::port() const {
  return impl_->port();
}
void Server::begin_stop() {
  impl_->begin_stop();
}
void Server::stop(double seconds) {
  impl_->stop(seconds);
}

} // namespace pentatron::serve::http
