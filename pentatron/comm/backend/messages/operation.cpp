#include "pentatron/comm/backend/messages/operation.h"

#include "pentatron/comm/backend/messages/engine.h"

#include <fmt/format.h>

namespace pentatron::comm::messages {

GroupState::GroupState(std::string name_, std::vector<int> members_, int member_, int context_,
                       int64_t run_)
    : name(std::move(name_)), members(std::move(members_)), member(member_), context(context_),
      run(run_) {
  collectives.send_tag = collectives.receive_tag = context * kTagsPerContext;
}

Lane& GroupState::transfers_between(int from, int to) {
  auto [slot, created] = transfers.try_emplace({from, to});
  if (created) { // data goes one way, the receiver's first message the other
    const int data = context * kTagsPerContext + 1, reply = data + 1;
    slot->second.send_tag = member == from ? data : reply;
    slot->second.receive_tag = member == from ? reply : data;
  }
  return slot->second;
}

std::string Operation::title() const {
  return fmt::format("{} #{}{} of group {}", name, number, route, group->name);
}

std::byte* Operation::buffer(int64_t bytes) {
  return buffers.emplace_back(engine.take_buffer(bytes)).data.get();
}

void Operation::send(Flight& flight, int to, const void* data, int64_t bytes) {
  engine.post_send(*this, flight, to, data, bytes, /*first=*/false);
}

void Operation::send_first(Flight& flight, int to, const void* data, int64_t bytes) {
  engine.post_send(*this, flight, to, data, bytes, /*first=*/true);
}

void Operation::receive(Flight& flight, int from, void* data, int64_t bytes) {
  engine.post_receive(*this, flight, from, data, bytes, /*first=*/false);
}

void Operation::receive_first(Flight& flight, int from, void* data, int64_t bytes) {
  engine.post_receive(*this, flight, from, data, bytes, /*first=*/true);
}

} // namespace pentatron::comm::messages
