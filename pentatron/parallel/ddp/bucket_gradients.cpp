#include "pentatron/parallel/ddp/bucket_gradients.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <deque>
#include <numeric>

#include "pentatron/base/error.h"
#include "pentatron/base/planted_bug.h"
#include "pentatron/nn/memory/counting_allocator.h"

namespace pentatron::parallel {

namespace {

at::Tensor allocate(const std::vector<int64_t>& lengths, const Reducer::Options& options) {
  const nn::MemoryScope scope(nn::MemoryCategory::kGradients);
  return at::zeros({std::accumulate(lengths.begin(), lengths.end(), int64_t{0})},
                   at::TensorOptions(options.dtype).device(options.device));
}

/// The gradients of a bucket are zero; their memory is not touched, for most of them are written
/// next by one product.
void clear(const Bucket& bucket) {
  for (const Bucket::Slot& slot : bucket.slots) slot.param->clear_main_grad();
}
/// Of a cleared bucket: those that nobody has written.
void write_zeros(const Bucket& bucket) {
  for (const Bucket::Slot& slot : bucket.slots) slot.param->main_grad();
}
void zero_gaps(const at::Tensor& flat, const Bucket& bucket) {
  int64_t end = 0;
  for (const Bucket::Slot& slot : bucket.slots) {
    flat.narrow(0, end, slot.begin - end).zero_();
    end = slot.begin + slot.param->numel();
  }
  flat.narrow(0, end, bucket.length - end).zero_();
}

/// A bucket is reduced once a step: as soon as no forward pass will follow and every use of its
/// parameters is paid back, or else in finish().
class ResidentGradients final : public BucketGradients {
 public:
  ResidentGradients(const std::vector<Bucket>& buckets, const BucketGradientsOptions& options)
      : buckets_(&buckets), overlap_(options.overlap), reducer_(options.reducer),
        flat_(allocate(lengths_of(buckets), options.reducer)),
        whole_(flat_.split_with_sizes(lengths_of(buckets))), started_(buckets.size(), false) {
    for (size_t b = 0; b < buckets.size(); ++b) {
      for (const Bucket::Slot& slot : buckets[b].slots) {
        slot.param->set_main_grad(view_of(whole_[b], slot));
        slot.param->on_ready = [this, b](nn::Param& param) { ready(b, param); };
      }
    }
  }

  at::Tensor owned(size_t b) const override {
    return shard_of(whole_[b], (*buckets_)[b], reducer_.shard().rank());
  }

  void begin_step() override {
    PT_DCHECK(under_way_.empty());
    for (const Bucket& bucket : *buckets_) clear(bucket);
    std::fill(started_.begin(), started_.end(), false);
    forwards_done_ = false;
  }

  void forwards_done() override {
    forwards_done_ = true;
    for (size_t b = 0; overlap_ && b < buckets_->size(); ++b) start_if_ready(b);
  }
  void backward_done(int64_t) override {}
  void defer_to_flush(bool) override {}
  void flush() override {}

  void finish() override {
    for (size_t b = 0; b < buckets_->size(); ++b) {
      if (!started_[b]) start(b);
    }
    while (!under_way_.empty()) finish_oldest();
    std::vector<at::Tensor> shards;
    for (size_t b = 0; b < buckets_->size(); ++b) shards.push_back(owned(b));
    reducer_.sum_over_replicas(shards);
  }

 private:
  /// All data-parallel ranks run the same program, so that buckets become ready in the same order.
  void ready(size_t b, const nn::Param& param) {
    if (started_[b])
      raise<Error>("internal error: {} received a gradient after its bucket was reduced",
                   param.name());
    if (overlap_ && forwards_done_) start_if_ready(b);
  }
  void start_if_ready(size_t b) {
    const auto paid_back = [](const Bucket::Slot& slot) {
      return slot.param->outstanding_uses() == 0;
    };
    const std::vector<Bucket::Slot>& slots = (*buckets_)[b].slots;
    if (!started_[b] && std::all_of(slots.begin(), slots.end(), paid_back)) start(b);
  }
  void start(size_t b) {
    if (reducer_.copies() && under_way_.size() == Reducer::kCopiesUnderWay) finish_oldest();
    write_zeros((*buckets_)[b]);
    under_way_.push_back(reducer_.start(whole_[b], (*buckets_)[b]));
    started_[b] = true;
  }
  void finish_oldest() {
    reducer_.finish(under_way_.front());
    under_way_.pop_front();
  }

  const std::vector<Bucket>* buckets_;
  bool overlap_;
  Reducer reducer_;
  at::Tensor flat_;
  std::vector<at::Tensor> whole_; // by bucket
  std::vector<bool> started_;     // in this step
  std::deque<Reducer::Reduction> under_way_;
  bool forwards_done_ = false;
};

/// Parameters have gradients only between the first one that backward brings and the end of the
/// segment's backward pass; then the bucket's scratch is reduced and its sum added to the owned
/// shard.
class ShardedGradients final : public BucketGradients {
 public:
  ShardedGradients(const std::vector<Bucket>& buckets, const BucketGradientsOptions& options)
      : buckets_(&buckets), overlap_(options.overlap), reducer_(options.reducer),
        flat_(allocate(shard_lengths_of(buckets, options.reducer.shard.rank()), options.reducer)),
        sums_(flat_.split_with_sizes(shard_lengths_of(buckets, options.reducer.shard.rank()))),
        pool_(flat_.options(), nn::MemoryCategory::kGradients), scratch_(buckets.size()) {
    for (size_t b = 0; b < buckets.size(); ++b) {
      for (const Bucket::Slot& slot : buckets[b].slots)
        slot.param->need_main_grad = [this, b](nn::Param&) { lend(b); };
    }
  }

  at::Tensor owned(size_t b) const override { return sums_[b]; }

  void begin_step() override {
    PT_DCHECK(under_way_.empty());
    if (!planted("sums_of_the_step_before_stay")) flat_.zero_();
  }
  void forwards_done() override {}

  void defer_to_flush(bool defer) override { defer_ = defer; }
  void backward_done(int64_t segment) override {
    if (defer_) return;
    finish_under_way(); // that of the segment before has had this one's time
    for (size_t b = 0; b < buckets_->size(); ++b) {
      // A bucket of several segments is complete with the first of them, the last in backward.
      if ((*buckets_)[b].segments.front() == segment) start(b);
    }
    if (!overlap_) finish_under_way();
  }
  void flush() override {
    finish_under_way();
    for (size_t b = 0; b < buckets_->size(); ++b) start(b);
    if (!overlap_) finish_under_way();
  }

  void finish() override {
    flush();
    finish_under_way();
    reducer_.sum_over_replicas(sums_);
  }

 private:
  struct UnderWay {
    size_t bucket;
    Reducer::Reduction reduction;
  };

  void lend(size_t b) {
    // Rather than another buffer, take one that waits for its reduction: of another microbatch
    // (backward goes from the last segment to the first), or a large one that a smaller bucket has.
    const Bucket& own = (*buckets_)[b];
    const auto gives = [&](const UnderWay& one) {
      const Bucket& other = (*buckets_)[one.bucket];
      return other.segments.front() <= own.segments.front() ||
             (other.length < own.length &&
              ScratchPool::capacity(one.reduction.gradients) >= own.length);
    };
    while (!pool_.has(own.length) && std::ranges::any_of(under_way_, gives)) finish_oldest();
    scratch_[b] = pool_.take((*buckets_)[b].length);
    zero_gaps(scratch_[b], (*buckets_)[b]);
    for (const Bucket::Slot& slot : (*buckets_)[b].slots)
      slot.param->set_main_grad(view_of(scratch_[b], slot));
    clear((*buckets_)[b]);
  }
  /// Nothing to do for a bucket that no gradient has reached; which those are is the same on all
  /// data-parallel ranks, since they run the same program.
  void start(size_t b) {
    if (!scratch_[b].defined()) return;
    if (reducer_.copies() && under_way_.size() == Reducer::kCopiesUnderWay) finish_oldest();
    write_zeros((*buckets_)[b]);
    for (const Bucket::Slot& slot : (*buckets_)[b].slots) slot.param->set_main_grad({});
    under_way_.push_back({b, reducer_.start(std::exchange(scratch_[b], {}), (*buckets_)[b])});
  }
  void finish_oldest() {
    UnderWay& one = under_way_.front();
    if (planted("only_the_last_microbatch_is_kept")) sums_[one.bucket].zero_();
    sums_[one.bucket].add_(reducer_.finish(one.reduction));
    pool_.give_back(one.reduction.gradients);
    under_way_.pop_front();
  }
  void finish_under_way() {
    while (!under_way_.empty()) finish_oldest();
  }

  const std::vector<Bucket>* buckets_;
  bool overlap_, defer_ = false;
  Reducer reducer_;
  at::Tensor flat_;
  std::vector<at::Tensor> sums_; // owned shards, by bucket
  ScratchPool pool_;
  std::vector<at::Tensor> scratch_; // lent at the moment, by bucket
  std::deque<UnderWay> under_way_;
};

} // namespace

std::unique_ptr<BucketGradients> make_resident_gradients(const std::vector<Bucket>& buckets,
                                                         const BucketGradientsOptions& options) {
  return std::make_unique<ResidentGradients>(buckets, options);
}

std::unique_ptr<BucketGradients> make_sharded_gradients(const std::vector<Bucket>& buckets,
                                                        const BucketGradientsOptions& options) {
  return std::make_unique<ShardedGradients>(buckets, options);
}

} // namespace pentatron::parallel
