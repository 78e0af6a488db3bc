#include "pentatron/parallel/expert/exchange.h"

#include <numeric>

#include <ATen/ATen.h>

#include "pentatron/base/planted_bug.h"
#include "pentatron/comm/collectives.h"
#include "pentatron/nn/record.h"

namespace pentatron::parallel {

void wait_in_turn(comm::Work& work, nn::Turns* turns, const comm::Group& group) {
  if (turns != nullptr && group.size() > 1) turns->pass();
  work.wait();
}

/// One way, and later the gradients' way back.
struct Exchange::Moving {
  at::Tensor in, out;
  comm::Work work;
};

Exchange Exchange::rows(std::vector<int64_t> send, std::vector<int64_t> receive, comm::Group group,
                        std::shared_ptr<nn::Turns> turns) {
  Exchange exchange;
  exchange.send_ = std::move(send);
  exchange.receive_ = std::move(receive);
  exchange.group_ = std::move(group);
  exchange.turns_ = std::move(turns);
  return exchange;
}

Exchange Exchange::gather(int64_t own, int64_t each, comm::Group group,
                          std::shared_ptr<nn::Turns> turns) {
  Exchange exchange;
  exchange.kind_ = Kind::kGather;
  exchange.own_ = own;
  exchange.each_ = each;
  exchange.group_ = std::move(group);
  exchange.turns_ = std::move(turns);
  return exchange;
}

Exchange Exchange::back() const {
  Exchange other = *this;
  std::swap(other.send_, other.receive_);
  if (kind_ == Kind::kGather) other.kind_ = Kind::kScatter;
  if (kind_ == Kind::kScatter) other.kind_ = Kind::kGather;
  return other;
}

void Exchange::begin(Moving& moving, const at::Tensor& x) const {
  moving.in = x.contiguous();
  if (group_.size() == 1) {
    moving.out = moving.in;
    return;
  }
  std::vector<int64_t> shape = x.sizes().vec();
  if (kind_ == Kind::kGather && own_ < each_) {
    shape[0] = each_;
    moving.in = at::zeros(shape, x.options());
    moving.in.narrow(0, 0, own_).copy_(x);
  }
  shape[0] = kind_ == Kind::kGather ? each_ * group_.size()
             : kind_ == Kind::kScatter
                 ? each_
                 : std::accumulate(receive_.begin(), receive_.end(), int64_t{0});
  moving.out = at::empty(shape, x.options());
  switch (kind_) {
  case Kind::kRows:
    moving.work = comm::all_to_all_rows_into(moving.out, moving.in, send_, receive_, group_);
    break;
  case Kind::kGather:
    moving.work = comm::all_gather_into(moving.out, moving.in, 0, group_);
    break;
  case Kind::kScatter:
    if (planted("gathered_results_not_summed")) {
      moving.out.copy_(moving.in.narrow(0, group_.rank() * each_, each_));
      break;
    }
    moving.work = comm::reduce_scatter_into(moving.out, moving.in, group_);
    break;
  }
}

at::Tensor Exchange::end(Moving& moving, bool hands_over) const {
  wait_in_turn(moving.work, hands_over ? turns_.get() : nullptr, group_);
  const Moving done = std::exchange(moving, {});
  return kind_ == Kind::kScatter ? done.out.narrow(0, 0, own_) : done.out;
}

Exchange::Started Exchange::start(const at::Tensor& x, HandOver hand_over) const {
  Started started{.moving = std::make_shared<Moving>(), .hand_over = hand_over};
  {
    const nn::NoAutograd guard;
    begin(*started.moving, x.detach());
    started.ticket = at::empty({0}, x.options());
  }
  // No tensor is kept from forward to backward: `moving` is empty between the two.
  nn::record("exchange_start", {x}, {started.ticket}, {},
             [back = back(), moving = started.moving, hand_over](auto&&, nn::Saved&) {
               const nn::NoAutograd guard;
               return std::vector<at::Tensor>{back.end(*moving, hand_over != HandOver::kForward)};
             });
  return started;
}

at::Tensor Exchange::finish(const Started& started) const {
  at::Tensor y;
  {
    const nn::NoAutograd guard;
    y = end(*started.moving, started.hand_over != HandOver::kBackward).detach();
  }
  nn::record("exchange", {started.ticket}, {y}, {},
             [back = back(), moving = started.moving](auto&& grads, nn::Saved&) {
               const nn::NoAutograd guard;
               back.begin(*moving, grads[0]);
               return std::vector<at::Tensor>{at::empty({0}, grads[0].options())};
             });
  return y;
}

} // namespace pentatron::parallel
