#include "pentatron/comm/control/message.h"

#include "pentatron/base/error.h"

#include <bit>
#include <cmath>
#include <type_traits>

namespace pentatron::comm::control {

namespace {

constexpr uint32_t kMagic = 0x32435450; // "PTC2"
constexpr size_t kMaxText = 4096;
constexpr size_t kMaxGroups = 4096;
constexpr size_t kMaxOperations = 256;
constexpr size_t kMaxRanks = size_t{1} << 20; // of all groups of a message together

class Writer {
 public:
  template <class T> void number(T value) {
    auto bits = static_cast<std::make_unsigned_t<T>>(value);
    for (size_t i = 0; i < sizeof(T); ++i, bits = static_cast<decltype(bits)>(uint64_t{bits} >> 8))
      bytes_ += static_cast<char>(bits & 0xff);
  }
  void real(double value) { number(std::bit_cast<int64_t>(value)); }
  void flag(bool value) { number<uint8_t>(value ? 1 : 0); }
  void text(std::string_view value) {
    value = value.substr(0, kMaxText);
    number(static_cast<uint32_t>(value.size()));
    bytes_ += value;
  }
  void key(const Key& key) { bytes_.append(reinterpret_cast<const char*>(key.data()), key.size()); }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}

  template <class T> T number() {
    need(sizeof(T));
    uint64_t bits = 0;
    for (size_t i = 0; i < sizeof(T); ++i)
      bits |= uint64_t{static_cast<uint8_t>(bytes_[at_ + i])} << (8 * i);
    at_ += sizeof(T);
    return static_cast<T>(bits);
  }
  double real() {
    const double value = std::bit_cast<double>(number<int64_t>());
    if (!std::isfinite(value)) wrong("a time is not finite");
    return value;
  }
  bool flag() {
    const auto value = number<uint8_t>();
    if (value > 1) wrong("a flag is neither 0 nor 1");
    return value == 1;
  }
  size_t count(size_t most) {
    const auto value = number<uint32_t>();
    if (value > most) wrong("a count is too large");
    return value;
  }
  int rank() {
    const auto value = number<int32_t>();
    if (value < 0) wrong("a rank is negative");
    return value;
  }
  std::string text() {
    const size_t size = count(kMaxText);
    need(size);
    std::string value(bytes_.substr(at_, size));
    at_ += size;
    for (char& c : value) {
      const auto byte = static_cast<unsigned char>(c);
      if ((byte < 0x20 && c != '\n') || byte == 0x7f) c = '?';
    }
    return value;
  }
  Key key() {
    need(16);
    Key key;
    for (uint8_t& byte : key) byte = static_cast<uint8_t>(bytes_[at_++]);
    return key;
  }
  size_t left() const { return bytes_.size() - at_; }
  void end() const {
    if (left() > 0) wrong("it is longer than expected");
  }
  [[noreturn]] static void wrong(std::string_view why) {
    raise<CommError>("a message of the control channel is invalid: {}", why);
  }

 private:
  void need(size_t count) const {
    if (left() < count) wrong("it is truncated");
  }

  std::string_view bytes_;
  size_t at_ = 0;
};

/// Ranks as runs of equal steps: the groups of a mesh are few of them.
void write_ranks(Writer& writer, const std::vector<int>& ranks) {
  struct Run {
    int first, step;
    uint32_t count;
  };
  std::vector<Run> runs;
  for (const int rank : ranks) {
    if (!runs.empty()) {
      Run& run = runs.back();
      const auto expected = int64_t{run.first} + int64_t{run.step} * run.count;
      if (run.count == 1) run.step = rank - run.first;
      if (run.count == 1 || expected == rank) {
        ++run.count;
        continue;
      }
    }
    runs.push_back({rank, 0, 1});
  }
  writer.number(static_cast<uint32_t>(runs.size()));
  for (const Run& run : runs) {
    writer.number<int32_t>(run.first);
    writer.number<int32_t>(run.step);
    writer.number(run.count);
  }
}

std::vector<int> read_ranks(Reader& reader, size_t& allowed) {
  std::vector<int> ranks;
  for (size_t runs = reader.count(reader.left() / 12); runs > 0; --runs) {
    const int64_t first = reader.rank();
    const int64_t step = reader.number<int32_t>();
    const size_t count = reader.count(allowed);
    allowed -= count;
    const int64_t last = first + step * (static_cast<int64_t>(count) - 1);
    if (count == 0 || last < 0 || last > INT32_MAX) Reader::wrong("a range of ranks is invalid");
    for (size_t i = 0; i < count; ++i)
      ranks.push_back(static_cast<int>(first + step * static_cast<int64_t>(i)));
  }
  return ranks;
}

void write(Writer& writer, const OperationStatus& operation) {
  writer.number<int32_t>(operation.from);
  writer.number<int32_t>(operation.to);
  writer.number(operation.number);
  writer.text(operation.call);
  writer.text(operation.tensor);
  writer.flag(operation.comparable);
  writer.number(static_cast<uint8_t>(operation.state));
  writer.real(operation.waiting_s);
}

OperationStatus read_operation(Reader& reader) {
  OperationStatus operation;
  operation.from = reader.number<int32_t>();
  operation.to = reader.number<int32_t>();
  if (operation.from < -1 || operation.to < -1 || (operation.from < 0) != (operation.to < 0))
    Reader::wrong("a transfer has only one rank");
  operation.number = reader.number<int64_t>();
  operation.call = reader.text();
  operation.tensor = reader.text();
  operation.comparable = reader.flag();
  const auto state = reader.number<uint8_t>();
  if (state > static_cast<uint8_t>(OperationStatus::State::kQueued))
    Reader::wrong("an operation has an unknown state");
  operation.state = static_cast<OperationStatus::State>(state);
  operation.waiting_s = reader.real();
  return operation;
}

void write(Writer& writer, const RankStatus& status) {
  writer.number(static_cast<uint32_t>(std::min(status.groups.size(), kMaxGroups)));
  for (size_t i = 0; i < std::min(status.groups.size(), kMaxGroups); ++i) {
    const GroupStatus& group = status.groups[i];
    writer.text(group.name);
    write_ranks(writer, group.ranks);
    writer.number<int32_t>(group.ordinal);
    writer.number(group.collectives);
    writer.number(static_cast<uint32_t>(group.transfers.size()));
    for (const auto& [pair, count] : group.transfers) {
      writer.number<int32_t>(pair.first);
      writer.number<int32_t>(pair.second);
      writer.number(count);
    }
    writer.number(static_cast<uint32_t>(group.operations.size()));
    for (const OperationStatus& operation : group.operations) write(writer, operation);
  }
  writer.text(status.last_finished);
  writer.text(status.work);
  writer.real(status.progress_s);
}

RankStatus read_status(Reader& reader) {
  RankStatus status;
  size_t allowed_ranks = kMaxRanks;
  status.groups.resize(reader.count(std::min(kMaxGroups, reader.left() / 24)));
  for (GroupStatus& group : status.groups) {
    group.name = reader.text();
    group.ranks = read_ranks(reader, allowed_ranks);
    group.ordinal = reader.number<int32_t>();
    group.collectives = reader.number<int64_t>();
    for (size_t left = reader.count(reader.left() / 16); left > 0; --left) {
      const int from = reader.rank();
      const int to = reader.rank();
      group.transfers[{from, to}] = reader.number<int64_t>();
    }
    for (size_t left = reader.count(kMaxOperations); left > 0; --left)
      group.operations.push_back(read_operation(reader));
  }
  status.last_finished = reader.text();
  status.work = reader.text();
  status.progress_s = reader.real();
  return status;
}

void write(Writer& writer, const Hello& hello) {
  writer.number(kMagic);
  writer.key(hello.nonce);
}

void write_claims(Writer& writer, const Join& join) {
  writer.number<int32_t>(join.rank);
  writer.number<int32_t>(join.world_size);
  writer.number(join.pid);
  writer.text(join.machine);
  writer.key(join.nonce);
}

void write(Writer& writer, const Join& join) {
  write_claims(writer, join);
  writer.key(join.proof);
}

void write(Writer& writer, const Welcome& welcome) {
  writer.key(welcome.proof);
  writer.number(welcome.pid);
  writer.text(welcome.machine);
  writer.number<int32_t>(welcome.host_rank);
}

void write(Writer& writer, const Heartbeat& heartbeat) {
  write(writer, heartbeat.status);
}

void write(Writer& writer, const Finished& finished) {
  write(writer, finished.status);
}

void write(Writer& writer, const Failed& failed) {
  writer.text(failed.sentence);
  writer.flag(failed.of_communication);
  writer.flag(failed.of_configuration);
  write(writer, failed.status);
}

void write(Writer& writer, const Ping& ping) {
  writer.flag(ping.status_wanted);
  writer.text(ping.host);
}

void write(Writer& writer, const Stop& stop) {
  writer.number<int32_t>(stop.exit_code);
  writer.text(stop.sentence);
}

void write(Writer& writer, const Signal& signal) {
  writer.number<int32_t>(signal.number);
}

Message read(size_t type, Reader& reader) {
  switch (type) {
  case 0: {
    if (reader.number<uint32_t>() != kMagic) Reader::wrong("it uses another protocol");
    return Hello{reader.key()};
  }
  case 1: {
    Join join;
    join.rank = reader.rank();
    join.world_size = reader.rank();
    join.pid = reader.number<int64_t>();
    join.machine = reader.text();
    join.nonce = reader.key();
    join.proof = reader.key();
    return join;
  }
  case 2: {
    Welcome welcome;
    welcome.proof = reader.key();
    welcome.pid = reader.number<int64_t>();
    welcome.machine = reader.text();
    welcome.host_rank = reader.number<int32_t>();
    return welcome;
  }
  case 3:
    return Heartbeat{read_status(reader)};
  case 4:
    return Finished{read_status(reader)};
  case 5: {
    Failed failed;
    failed.sentence = reader.text();
    failed.of_communication = reader.flag();
    failed.of_configuration = reader.flag();
    failed.status = read_status(reader);
    return failed;
  }
  case 6: {
    Ping ping;
    ping.status_wanted = reader.flag();
    ping.host = reader.text();
    return ping;
  }
  case 7: {
    Stop stop;
    stop.exit_code = reader.number<int32_t>();
    stop.sentence = reader.text();
    return stop;
  }
  case 8:
    return Signal{reader.number<int32_t>()};
  default:
    Reader::wrong("its type is unknown");
  }
}

} // namespace

std::string encode(const Message& message) {
  Writer writer;
  writer.number(static_cast<uint8_t>(message.index()));
  std::visit([&](const auto& one) { write(writer, one); }, message);
  return writer.take();
}

Message decode(std::string_view bytes) {
  Reader reader(bytes);
  const auto type = reader.number<uint8_t>();
  Message message = read(type, reader);
  reader.end();
  return message;
}

Key proof(const Key& secret, std::string_view role, const Key& server_nonce, const Join& join) {
  Writer writer;
  writer.text(role);
  writer.key(server_nonce);
  write_claims(writer, join);
  return siphash(secret, writer.take());
}

Key session_key(const Key& secret, const Key& client_proof, const Key& server_proof) {
  Writer writer;
  writer.text("session");
  writer.key(client_proof);
  writer.key(server_proof);
  return siphash(secret, writer.take());
}

} // namespace pentatron::comm::control
