#include "pentatron/comm/backend/messages/meeting.h"

#include "pentatron/base/error.h"
#include "pentatron/comm/backend/messages/engine.h"

#include <cstring>

namespace pentatron::comm::messages {

namespace {

constexpr int64_t kTextBytes = 1024;

struct Header {
  int64_t number;
  uint64_t call; ///< hash
  int64_t num_words;
  int64_t payload_bytes;
};

uint64_t hash(std::string_view text) {
  uint64_t value = 14695981039346656037ULL; // FNV-1a
  for (const char c : text) value = (value ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
  return value;
}

/// The same for every operation of a group, so that any first message fits.
int64_t slot_bytes(const Operation& operation) {
  const int64_t bytes =
      static_cast<int64_t>(sizeof(Header)) +
      8 * Greeting::kMaxWordsPerMember * static_cast<int64_t>(operation.group->members.size()) +
      operation.engine.options().inline_bytes;
  return (bytes + 63) / 64 * 64;
}

int64_t write(std::byte* to, const Header& header, const std::vector<int64_t>& words,
              std::span<const std::byte> payload) {
  std::memcpy(to, &header, sizeof(header));
  std::byte* end = to + sizeof(header);
  if (!words.empty()) std::memcpy(end, words.data(), words.size() * sizeof(int64_t));
  end += words.size() * sizeof(int64_t);
  if (!payload.empty()) std::memcpy(end, payload.data(), payload.size());
  return end + payload.size() - to;
}

} // namespace

Protocol exchange_texts(Operation& op, std::string text, std::vector<std::string>& texts) {
  Flight& flight = op.flight();
  std::byte* boxes = op.buffer(kTextBytes * op.size());
  std::byte* own = boxes + kTextBytes * op.member;
  text.resize(std::min<size_t>(text.size(), 1000));
  std::memcpy(own, text.c_str(), text.size() + 1);
  for (int r = 0; r < op.size(); ++r)
    if (r != op.member) {
      op.receive_first(flight, r, boxes + kTextBytes * r, kTextBytes);
      op.send_first(flight, r, own, static_cast<int64_t>(text.size()) + 1);
    }
  co_await flight;
  texts.clear();
  for (int r = 0; r < op.size(); ++r)
    texts.emplace_back(reinterpret_cast<const char*>(boxes + kTextBytes * r));
}

Protocol meet(Operation& op, Greeting greeting, Meeting& meeting) {
  const int size = op.size();
  const int64_t slot = slot_bytes(op);
  Flight& flight = op.flight();
  std::byte* inbox = op.buffer(slot * size);
  for (int r = 0; r < size; ++r)
    if (r != op.member) op.receive_first(flight, r, inbox + slot * r, slot);

  const bool same_to_all = greeting.payloads.size() <= 1;
  greeting.payloads.resize(greeting.payloads.empty() ? 1 : greeting.payloads.size());
  const auto payload_for = [&](int r) { return greeting.payloads[same_to_all ? 0 : size_t(r)]; };
  Header header{op.number, hash(op.call), static_cast<int64_t>(greeting.words.size()), 0};
  std::byte* outbox = op.buffer(slot * (same_to_all ? 1 : size));
  int64_t bytes = 0;
  for (int i = 1; i <= size; ++i) {
    const int r = (op.member + i) % size;
    std::byte* box = same_to_all ? outbox : outbox + slot * r;
    if (!same_to_all || i == 1) {
      header.payload_bytes = static_cast<int64_t>(payload_for(r).size());
      bytes = write(box, header, greeting.words, payload_for(r));
    }
    if (r != op.member) op.send_first(flight, r, box, bytes);
  }
  write(inbox + slot * op.member, header, greeting.words, {});
  co_await flight;
  op.engine.joined(op);

  int other = -1;
  for (int r = 0; r < size; ++r) {
    Header theirs;
    std::memcpy(&theirs, inbox + slot * r, sizeof(theirs));
    const auto* words = reinterpret_cast<const int64_t*>(inbox + slot * r + sizeof(theirs));
    meeting.words.emplace_back(words, static_cast<size_t>(theirs.num_words));
    meeting.payloads.push_back(r == op.member
                                   ? payload_for(r).data()
                                   : reinterpret_cast<const std::byte*>(words + theirs.num_words));
    Header first;
    std::memcpy(&first, inbox, sizeof(first));
    if (other < 0 && (theirs.call != first.call || theirs.number != first.number)) other = r;
  }
  if (other < 0) co_return;

  std::vector<std::string> titles, calls;
  Protocol exchange = exchange_texts(op, op.title(), titles);
  co_await exchange;
  exchange = exchange_texts(op, op.call, calls);
  co_await exchange;
  raise<CommError>("{} differs between ranks: rank {} calls {}, rank {} calls {}", titles[0],
                   op.members[0], calls[0], op.members[static_cast<size_t>(other)],
                   calls[static_cast<size_t>(other)]);
}

} // namespace pentatron::comm::messages
