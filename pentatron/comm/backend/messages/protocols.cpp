#include "pentatron/comm/backend/messages/protocols.h"

#include "pentatron/base/error.h"
#include "pentatron/comm/backend/messages/engine.h"
#include "pentatron/comm/backend/messages/meeting.h"
#include "pentatron/comm/backend/reduce.h"
#include "pentatron/comm/backend/shape_text.h"

#include <ATen/ops/from_blob.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cstring>

namespace pentatron::comm::messages {

namespace {

int64_t bytes_of(const at::Tensor& x) {
  return static_cast<int64_t>(x.nbytes());
}

const std::byte* read(const at::Tensor& x) {
  return static_cast<const std::byte*>(x.const_data_ptr());
}

std::byte* written(const at::Tensor& x) {
  return static_cast<std::byte*>(x.mutable_data_ptr());
}

std::span<const std::byte> payload(const at::Tensor& x) {
  return {read(x), x.nbytes()};
}

bool is_small(const Operation& op, const at::Tensor& x) {
  return bytes_of(x) <= op.engine.options().inline_bytes;
}
/// As all ranks find it: by the largest.
bool are_small(const Operation& op, const Tensors& parts) {
  return std::ranges::all_of(parts, [&](const at::Tensor& part) { return is_small(op, part); });
}

void copy_data(const at::Tensor& out, const at::Tensor& in) {
  if (in.numel() == 0 || out.data_ptr() == in.data_ptr()) return;
  const c10::InferenceMode guard; // this thread's modes are not those of the caller
  out.copy_(in);
}

/// Data of `like`'s shape that came as bytes.
void copy_bytes(const at::Tensor& out, const std::byte* in) {
  if (out.numel() == 0) return;
  if (out.is_contiguous())
    std::memcpy(written(out), in, out.nbytes());
  else
    copy_data(out, at::from_blob(const_cast<std::byte*>(in), out.sizes(), out.options()));
}

/// Elements [begin, end).
struct Range {
  int64_t begin, end;
  int64_t size() const { return end - begin; }
};

Range part(int64_t numel, int parts, int index) {
  return {numel * index / parts, numel * (index + 1) / parts};
}

Range step_of(Range range, int64_t step, int64_t step_size) {
  const int64_t begin = std::min(range.end, range.begin + step * step_size);
  return {begin, std::min(range.end, begin + step_size)};
}

/// The others, each member beginning with its neighbour.
std::vector<int> others(const Operation& op) {
  std::vector<int> result;
  for (int i = 1; i < op.size(); ++i) result.push_back((op.member + i) % op.size());
  return result;
}

/// Receives in turn, each into one of two buffers, what the others hold of this member's elements,
/// and reduces it.
class StepwiseReduction {
 public:
  /// `source(r)` is what this member holds of member r's elements.
  StepwiseReduction(Operation& op, at::ScalarType dtype, ReduceOp reduce,
                    std::vector<const std::byte*> sources, std::vector<Range> ranges)
      : op_(op), dtype_(dtype), reduce_(reduce), sources_(std::move(sources)),
        ranges_(std::move(ranges)), element_(static_cast<int64_t>(c10::elementSize(dtype))),
        step_size_(std::max<int64_t>(1, op.engine.options().step_bytes / element_)) {
    int64_t largest = 0;
    for (const Range& range : ranges_) largest = std::max(largest, range.size());
    num_steps_ = (largest + step_size_ - 1) / step_size_;
    box_bytes_ = std::min(largest, step_size_) * element_;
    for (int i = 0; i < 2; ++i) {
      flights_[i] = &op.flight();
      boxes_[i] = op.buffer(box_bytes_ * (op.size() - 1));
    }
  }

  int64_t num_steps() const { return num_steps_; }
  Range range(int member, int64_t step) const {
    return step_of(ranges_[static_cast<size_t>(member)], step, step_size_);
  }
  Flight& flight(int64_t step) { return *flights_[step % 2]; }

  void post(int64_t step) {
    const int64_t own_bytes = range(op_.member, step).size() * element_;
    for (const int r : others(op_)) {
      const Range theirs = range(r, step);
      op_.receive(flight(step), r, box(r, step), own_bytes);
      op_.send(flight(step), r, sources_[static_cast<size_t>(r)] + theirs.begin * element_,
               theirs.size() * element_);
    }
  }
  /// Once flight(step) is over. Writes to element 0 of the range at `out`.
  void reduce(int64_t step, std::byte* out) {
    const Range own = range(op_.member, step);
    std::vector<const void*> sources;
    for (int r = 0; r < op_.size(); ++r)
      sources.push_back(r == op_.member ? sources_[static_cast<size_t>(r)] + own.begin * element_
                                        : box(r, step));
    reduce_buffers(dtype_, sources, {out + own.begin * element_}, own.size(), reduce_);
  }

 private:
  std::byte* box(int member, int64_t step) {
    return boxes_[step % 2] + box_bytes_ * (member > op_.member ? member - 1 : member);
  }

  Operation& op_;
  at::ScalarType dtype_;
  ReduceOp reduce_;
  std::vector<const std::byte*> sources_;
  std::vector<Range> ranges_;
  int64_t element_, step_size_, num_steps_ = 0, box_bytes_ = 0;
  Flight* flights_[2];
  std::byte* boxes_[2];
};

uint64_t shape_hash(const at::Tensor& x) {
  uint64_t value = 14695981039346656037ULL + static_cast<uint64_t>(x.dim());
  for (const int64_t extent : x.sizes())
    value = (value ^ static_cast<uint64_t>(extent)) * 0x9E3779B97F4A7C15ULL + (value >> 29);
  return value;
}

} // namespace

Protocol all_reduce(Operation& op, at::Tensor out, at::Tensor in, ReduceOp reduce) {
  op.tensors = {out, in};
  const bool small = is_small(op, in);
  Greeting greeting;
  if (small) greeting.payloads = {payload(in)};
  Meeting meeting;
  Protocol meets = meet(op, std::move(greeting), meeting);
  co_await meets;
  const int64_t numel = in.numel();
  if (small) {
    const std::vector<const void*> sources(meeting.payloads.begin(), meeting.payloads.end());
    reduce_buffers(in.scalar_type(), sources, {written(out)}, numel, reduce);
    co_return;
  }

  const int size = op.size();
  const int64_t element = in.element_size();
  std::vector<Range> parts;
  for (int r = 0; r < size; ++r) parts.push_back(part(numel, size, r));
  StepwiseReduction reduction(op, in.scalar_type(), reduce,
                              std::vector<const std::byte*>(parts.size(), read(in)), parts);
  Flight* gathers[2] = {&op.flight(), &op.flight()};
  reduction.post(0);
  for (int64_t step = 0; step < reduction.num_steps(); ++step) {
    if (step + 1 < reduction.num_steps()) reduction.post(step + 1);
    Flight& scatter = reduction.flight(step);
    co_await scatter;
    reduction.reduce(step, written(out));
    // `out` may be `in`: what is written here was sent by the flight that has just ended.
    Flight& gather = *gathers[step % 2];
    co_await gather;
    const Range own = reduction.range(op.member, step);
    for (const int r : others(op)) {
      const Range theirs = reduction.range(r, step);
      op.receive(gather, r, written(out) + theirs.begin * element, theirs.size() * element);
      op.send(gather, r, written(out) + own.begin * element, own.size() * element);
    }
  }
  for (Flight* last : gathers) {
    Flight& gather = *last;
    co_await gather;
  }
}

Protocol reduce_scatter(Operation& op, at::Tensor out, Tensors ins, ReduceOp reduce) {
  op.tensors = ins;
  op.tensors.push_back(out);
  const bool small = are_small(op, ins);
  Greeting greeting;
  if (small)
    for (const at::Tensor& in : ins) greeting.payloads.push_back(payload(in));
  Meeting meeting;
  Protocol meets = meet(op, std::move(greeting), meeting);
  co_await meets;
  if (small) {
    const std::vector<const void*> sources(meeting.payloads.begin(), meeting.payloads.end());
    reduce_buffers(out.scalar_type(), sources, {written(out)}, out.numel(), reduce);
    co_return;
  }

  std::vector<const std::byte*> sources;
  std::vector<Range> ranges;
  for (const at::Tensor& in : ins) {
    sources.push_back(read(in));
    ranges.push_back({0, in.numel()});
  }
  StepwiseReduction reduction(op, out.scalar_type(), reduce, std::move(sources), std::move(ranges));
  reduction.post(0);
  for (int64_t step = 0; step < reduction.num_steps(); ++step) {
    if (step + 1 < reduction.num_steps()) reduction.post(step + 1);
    Flight& scatter = reduction.flight(step);
    co_await scatter;
    reduction.reduce(step, written(out));
  }
}

Protocol all_gather(Operation& op, Tensors outs, at::Tensor in) {
  op.tensors = outs;
  op.tensors.push_back(in);
  const bool small = are_small(op, outs);
  Greeting greeting;
  if (small) greeting.payloads = {payload(in)};
  Meeting meeting;
  Protocol meets = meet(op, std::move(greeting), meeting);
  co_await meets;
  std::vector<std::byte*> landings(outs.size());
  Flight& flight = op.flight();
  if (!small)
    for (const int r : others(op)) {
      const at::Tensor& out = outs[static_cast<size_t>(r)];
      landings[static_cast<size_t>(r)] =
          out.is_contiguous() ? written(out) : op.buffer(bytes_of(out));
      op.receive(flight, r, landings[static_cast<size_t>(r)], bytes_of(out));
      op.send(flight, r, read(in), bytes_of(in));
    }
  copy_data(outs[static_cast<size_t>(op.member)], in);
  co_await flight;
  for (const int r : others(op)) {
    const at::Tensor& out = outs[static_cast<size_t>(r)];
    if (small)
      copy_bytes(out, meeting.payloads[static_cast<size_t>(r)]);
    else if (!out.is_contiguous())
      copy_bytes(out, landings[static_cast<size_t>(r)]);
  }
}

Protocol broadcast(Operation& op, at::Tensor inout, int root) {
  op.tensors = {inout};
  const bool small = is_small(op, inout), is_root = op.member == root;
  Greeting greeting;
  if (small && is_root) greeting.payloads = {payload(inout)};
  Meeting meeting;
  Protocol meets = meet(op, std::move(greeting), meeting);
  co_await meets;
  if (small) {
    if (!is_root) copy_bytes(inout, meeting.payloads[static_cast<size_t>(root)]);
    co_return;
  }

  const int64_t bytes = bytes_of(inout);
  const auto part_of = [&](int r) { return part(bytes, op.size(), r); };
  const auto send_part = [&](Flight& flight, int to, const Range& range) {
    op.send(flight, to, read(inout) + range.begin, range.size());
  };
  const auto receive_part = [&](Flight& flight, int from, const Range& range) {
    op.receive(flight, from, written(inout) + range.begin, range.size());
  };
  Flight& scatter = op.flight();
  if (is_root)
    for (const int r : others(op)) send_part(scatter, r, part_of(r));
  else
    receive_part(scatter, root, part_of(op.member));
  co_await scatter;
  Flight& gather = op.flight();
  for (const int r : others(op)) {
    if (r != root) send_part(gather, r, part_of(op.member));
    if (!is_root) receive_part(gather, r, part_of(r));
  }
  co_await gather;
}

Protocol all_to_all(Operation& op, Tensors outs, Tensors ins) {
  for (at::Tensor& in : ins) in = in.contiguous();
  op.tensors = ins;
  op.tensors.insert(op.tensors.end(), outs.begin(), outs.end());
  Greeting greeting;
  for (const at::Tensor& in : ins) {
    greeting.words.push_back(static_cast<int64_t>(shape_hash(in)));
    greeting.payloads.push_back(is_small(op, in) ? payload(in) : std::span<const std::byte>());
  }
  for (const at::Tensor& out : outs)
    greeting.words.push_back(static_cast<int64_t>(shape_hash(out)));
  Meeting meeting;
  Protocol meets = meet(op, std::move(greeting), meeting);
  co_await meets;

  const size_t size = outs.size(), me = static_cast<size_t>(op.member);
  for (size_t to = 0; to < size; ++to) // all members look at all pairs, and so see the same
    for (size_t from = 0; from < size; ++from) {
      if (meeting.words[from][to] == meeting.words[to][size + from]) continue;
      std::vector<std::string> sent, expected;
      Protocol exchange = exchange_texts(op, shape_text(ins[to]), sent);
      co_await exchange;
      exchange = exchange_texts(op, shape_text(outs[from]), expected);
      co_await exchange;
      raise<CommError>("{} differs between ranks: rank {} sends {} to rank {}, which expects {}",
                       op.title(), op.members[from], sent[from], op.members[to], expected[to]);
    }

  std::vector<std::byte*> landings(size);
  Flight& flight = op.flight();
  for (const int r : others(op)) {
    const at::Tensor &in = ins[static_cast<size_t>(r)], &out = outs[static_cast<size_t>(r)];
    if (!is_small(op, out)) {
      landings[static_cast<size_t>(r)] =
          out.is_contiguous() ? written(out) : op.buffer(bytes_of(out));
      op.receive(flight, r, landings[static_cast<size_t>(r)], bytes_of(out));
    }
    if (!is_small(op, in)) op.send(flight, r, read(in), bytes_of(in));
  }
  copy_data(outs[me], ins[me]);
  co_await flight;
  for (const int r : others(op)) {
    const at::Tensor& out = outs[static_cast<size_t>(r)];
    if (is_small(op, out))
      copy_bytes(out, meeting.payloads[static_cast<size_t>(r)]);
    else if (!out.is_contiguous())
      copy_bytes(out, landings[static_cast<size_t>(r)]);
  }
}

Protocol transfer(Operation& op, at::Tensor tensor, bool sends) {
  op.tensors = {tensor};
  const int peer = 1 - op.member;
  Greeting greeting;
  if (sends && is_small(op, tensor)) greeting.payloads = {payload(tensor)};
  Meeting meeting;
  Protocol meets = meet(op, std::move(greeting), meeting);
  co_await meets;
  if (is_small(op, tensor)) {
    if (!sends) copy_bytes(tensor, meeting.payloads[static_cast<size_t>(peer)]);
    co_return;
  }
  Flight& flight = op.flight();
  if (sends)
    op.send(flight, peer, read(tensor), bytes_of(tensor));
  else
    op.receive(flight, peer, written(tensor), bytes_of(tensor));
  co_await flight;
}

Protocol barrier(Operation& op) {
  Meeting meeting;
  Protocol meets = meet(op, {}, meeting);
  co_await meets;
}

Protocol exchange_words(Operation& op, std::vector<int64_t> words,
                        std::shared_ptr<std::vector<std::vector<int64_t>>> result) {
  Greeting greeting;
  greeting.words = std::move(words);
  Meeting meeting;
  Protocol meets = meet(op, std::move(greeting), meeting);
  co_await meets;
  for (const auto& theirs : meeting.words) result->emplace_back(theirs.begin(), theirs.end());
}

} // namespace pentatron::comm::messages
