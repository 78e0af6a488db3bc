#include "pentatron/parallel/ddp/bucket_values.h"

#include <ATen/ATen.h>

#include <map>

#include "pentatron/base/error.h"
#include "pentatron/base/planted_bug.h"
#include "pentatron/comm/collectives.h"
#include "pentatron/nn/memory/counting_allocator.h"
#include "pentatron/parallel/ddp/scratch_pool.h"

namespace pentatron::parallel {

namespace {

std::vector<at::Tensor> allocate(const std::vector<Bucket>& buckets, int64_t num_shards,
                                 at::Device device) {
  const at::ScalarType dtype =
      buckets.empty() ? at::kFloat : buckets.front().slots.front().param->dtype();
  const nn::MemoryScope scope(nn::MemoryCategory::kParameters);
  const at::Tensor flat =
      at::zeros({flat_size(buckets, num_shards)}, at::TensorOptions(dtype).device(device));
  return cut_by_bucket(flat, buckets, num_shards);
}

class Values : public BucketValues {
 public:
  Values(const std::vector<Bucket>& buckets, const BucketValuesOptions& options)
      : buckets_(&buckets), shard_(options.shard), overlap_(options.overlap),
        works_(buckets.size()) {
    for (size_t b = 0; b < buckets.size(); ++b) {
      for (const int64_t unit : buckets[b].units) of_unit_[unit].push_back(b);
    }
  }

 protected:
  const std::vector<size_t>& of_unit(int64_t unit) const {
    static const std::vector<size_t> none;
    const auto found = of_unit_.find(unit);
    return found == of_unit_.end() ? none : found->second;
  }
  const Bucket& bucket(size_t b) const { return (*buckets_)[b]; }
  size_t num_buckets() const { return buckets_->size(); }
  void wait_for(size_t b) { std::exchange(works_[b], {}).wait(); }

  const std::vector<Bucket>* buckets_;
  comm::Group shard_;
  bool overlap_;
  std::vector<comm::Work> works_; // gathers under way, by bucket

 private:
  std::map<int64_t, std::vector<size_t>> of_unit_;
};

class ResidentValues final : public Values {
 public:
  ResidentValues(const std::vector<Bucket>& buckets, const BucketValuesOptions& options)
      : Values(buckets, options), whole_(allocate(buckets, 1, options.device)) {
    for (size_t b = 0; b < num_buckets(); ++b) {
      for (const Bucket::Slot& slot : bucket(b).slots)
        slot.param->set_value(view_of(whole_[b], slot));
    }
  }

  at::Tensor owned(size_t b) const override {
    return shard_of(whole_[b], shard_.rank(), shard_.size());
  }

  void acquire(int64_t unit, nn::Pass) override {
    for (const size_t b : of_unit(unit)) wait_for(b);
  }
  void release(int64_t) override {}

  void publish() override {
    for (size_t b = num_buckets(); b-- > 0;) { // in the order of the next forward pass
      if (b == 0 && planted("stale_parameters_after_the_update")) continue;
      works_[b] = comm::all_gather_into(whole_[b], owned(b), 0, shard_);
      if (!overlap_) wait_for(b);
    }
  }
  void wait() override {
    for (size_t b = 0; b < num_buckets(); ++b) wait_for(b);
  }

  void write(const std::function<void(nn::Param&)>& fill) override {
    wait();
    for (const Bucket& bucket : *buckets_) {
      for (const Bucket::Slot& slot : bucket.slots) fill(*slot.param);
    }
  }
  void read(const std::function<void(const nn::Param&)>& visit) override { write(visit); }

 private:
  std::vector<at::Tensor> whole_; // by bucket
};

class ShardedValues final : public Values {
 public:
  ShardedValues(const std::vector<Bucket>& buckets, const BucketValuesOptions& options)
      : Values(buckets, options), owned_(allocate(buckets, shard_.size(), options.device)),
        pool_(owned_.empty() ? at::TensorOptions() : owned_.front().options()),
        gathered_(buckets.size()), users_(buckets.size(), 0) {}

  at::Tensor owned(size_t b) const override { return owned_[b]; }

  void acquire(int64_t unit, nn::Pass pass) override {
    for (const size_t b : of_unit(unit)) start(b);
    if (overlap_) {
      for (const size_t b : of_unit(pass == nn::Pass::kForward ? unit + 1 : unit - 1)) start(b);
    }
    for (const size_t b : of_unit(unit)) {
      if (users_[b]++ == 0) lend(b);
    }
  }
  void release(int64_t unit) override {
    for (const size_t b : of_unit(unit)) {
      if (--users_[b] == 0) drop(b);
    }
  }

  /// What was gathered ahead and not used is old now.
  void publish() override { wait(); }
  void wait() override {
    for (size_t b = 0; b < num_buckets(); ++b) {
      PT_DCHECK(users_[b] == 0);
      if (gathered_[b].defined()) drop(b);
    }
  }

  void write(const std::function<void(nn::Param&)>& fill) override {
    wait();
    for (size_t b = 0; b < num_buckets(); ++b) {
      gathered_[b] = pool_.take(bucket(b).length).zero_();
      lend(b);
      for (const Bucket::Slot& slot : bucket(b).slots) fill(*slot.param);
      owned_[b].copy_(shard_of(gathered_[b], shard_.rank(), shard_.size()));
      drop(b);
    }
  }
  void read(const std::function<void(const nn::Param&)>& visit) override {
    wait();
    for (size_t b = 0; b < num_buckets(); ++b) {
      start(b);
      lend(b);
      for (const Bucket::Slot& slot : bucket(b).slots) visit(*slot.param);
      drop(b);
    }
  }

 private:
  void start(size_t b) {
    if (gathered_[b].defined()) return;
    gathered_[b] = pool_.take(bucket(b).length);
    works_[b] = comm::all_gather_into(gathered_[b], owned_[b], 0, shard_);
    if (!overlap_) wait_for(b);
  }
  void lend(size_t b) {
    wait_for(b);
    if (planted("zero3_memory_given_back_in_use")) pool_.give_back(gathered_[b]);
    for (const Bucket::Slot& slot : bucket(b).slots)
      slot.param->set_value(view_of(gathered_[b], slot));
  }
  void drop(size_t b) {
    wait_for(b);
    for (const Bucket::Slot& slot : bucket(b).slots) slot.param->set_value({});
    pool_.give_back(std::exchange(gathered_[b], {}));
  }

  std::vector<at::Tensor> owned_;
  ScratchPool pool_;
  std::vector<at::Tensor> gathered_; // undefined: not here
  std::vector<int> users_;           // acquires without release
};

} // namespace

std::unique_ptr<BucketValues> make_resident_values(const std::vector<Bucket>& buckets,
                                                   const BucketValuesOptions& options) {
  return std::make_unique<ResidentValues>(buckets, options);
}

std::unique_ptr<BucketValues> make_sharded_values(const std::vector<Bucket>& buckets,
                                                  const BucketValuesOptions& options) {
  return std::make_unique<ShardedValues>(buckets, options);
}

} // namespace pentatron::parallel
