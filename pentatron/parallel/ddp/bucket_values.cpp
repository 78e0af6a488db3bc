#include "pentatron/parallel/ddp/bucket_values.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "pentatron/base/error.h"
#include "pentatron/base/planted_bug.h"
#include "pentatron/comm/collectives.h"
#include "pentatron/nn/host_copies.h"
#include "pentatron/nn/memory/counting_allocator.h"
#include "pentatron/parallel/ddp/scratch_pool.h"

namespace pentatron::parallel {

namespace {

std::vector<at::Tensor> allocate(const std::vector<Bucket>& buckets,
                                 const std::vector<int64_t>& lengths, at::Device device) {
  const at::ScalarType dtype =
      buckets.empty() ? at::kFloat : buckets.front().slots.front().param->dtype();
  const nn::MemoryScope scope(nn::MemoryCategory::kParameters);
  const at::Tensor flat = at::zeros({std::accumulate(lengths.begin(), lengths.end(), int64_t{0})},
                                    at::TensorOptions(dtype).device(device));
  return flat.split_with_sizes(lengths);
}

class Values : public BucketValues {
 public:
  Values(const std::vector<Bucket>& buckets, const BucketValuesOptions& options)
      : buckets_(&buckets), shard_(options.shard), overlap_(options.overlap),
        works_(buckets.size()) {
    for (size_t b = 0; b < buckets.size(); ++b) {
      for (const int64_t segment : buckets[b].segments) of_segment_[segment].push_back(b);
    }
  }

 protected:
  const std::vector<size_t>& of_segment(int64_t segment) const {
    static const std::vector<size_t> none;
    const auto found = of_segment_.find(segment);
    return found == of_segment_.end() ? none : found->second;
  }
  /// Calls `start` for the buckets of the segment, and under overlap for those that the pass needs
  /// next.
  template <class Fn> void start_needed(int64_t segment, nn::Pass pass, Fn&& start) {
    for (const size_t b : of_segment(segment)) start(b);
    if (!overlap_) return;
    for (const size_t b : of_segment(pass == nn::Pass::kForward ? segment + 1 : segment - 1))
      start(b);
  }
  const Bucket& bucket(size_t b) const { return (*buckets_)[b]; }
  size_t num_buckets() const { return buckets_->size(); }
  at::Tensor own_part(size_t b, const at::Tensor& whole) const {
    return shard_of(whole, bucket(b), shard_.rank());
  }
  comm::Work gather(size_t b, const at::Tensor& whole, const at::Tensor& own) const {
    return comm::all_gather_rows_into(whole, own, bucket(b).shards, shard_);
  }
  void wait_for(size_t b) { std::exchange(works_[b], {}).wait(); }

  const std::vector<Bucket>* buckets_;
  comm::Group shard_;
  bool overlap_;
  std::vector<comm::Work> works_; // gathers under way, by bucket

 private:
  std::map<int64_t, std::vector<size_t>> of_segment_;
};

class ResidentValues final : public Values {
 public:
  ResidentValues(const std::vector<Bucket>& buckets, const BucketValuesOptions& options)
      : Values(buckets, options), whole_(allocate(buckets, lengths_of(buckets), options.device)) {
    for (size_t b = 0; b < num_buckets(); ++b) {
      for (const Bucket::Slot& slot : bucket(b).slots)
        slot.param->set_value(view_of(whole_[b], slot));
    }
  }

  at::Tensor owned(size_t b) const override { return own_part(b, whole_[b]); }

  void acquire(int64_t segment, nn::Pass) override {
    for (const size_t b : of_segment(segment)) wait_for(b);
  }
  void release(int64_t) override {}

  void publish() override {
    for (size_t b = num_buckets(); b-- > 0;) { // in the order of the next forward pass
      if (b == 0 && planted("stale_parameters_after_the_update")) continue;
      works_[b] = gather(b, whole_[b], owned(b));
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
      : Values(buckets, options),
        owned_(allocate(buckets, shard_lengths_of(buckets, shard_.rank()), options.device)),
        pool_(owned_.empty() ? at::TensorOptions() : owned_.front().options(),
              nn::MemoryCategory::kParameters),
        gathered_(buckets.size()), users_(buckets.size(), 0) {}

  at::Tensor owned(size_t b) const override { return owned_[b]; }

  void acquire(int64_t segment, nn::Pass pass) override {
    start_needed(segment, pass, [this](size_t b) { start(b); });
    for (const size_t b : of_segment(segment)) {
      if (users_[b]++ == 0) lend(b);
    }
  }
  void release(int64_t segment) override {
    for (const size_t b : of_segment(segment)) {
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
      owned_[b].copy_(own_part(b, gathered_[b]));
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
    works_[b] = gather(b, gathered_[b], owned_[b]);
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

/// Weights in low precision: their owners have the values, and segments get the codes.
class Fp8Values final : public Values {
 public:
  Fp8Values(const std::vector<Bucket>& buckets, const BucketValuesOptions& options, bool sharded)
      : Values(buckets, options), sharded_(sharded),
        owned_(allocate(buckets, shard_lengths_of(buckets, shard_.rank()), options.device)),
        pool_(code_options(), nn::MemoryCategory::kParameters) {
    const nn::MemoryScope scope(nn::MemoryCategory::kParameters);
    for (const Bucket& bucket : buckets) {
      Codes& codes = codes_.emplace_back();
      std::vector<int64_t> regions;
      for (const Bucket::Slot& slot : bucket.slots)
        regions.push_back(nn::Fp8Weight::num_regions(recipe(slot), slot.param->shape()));
      codes.all_amax = at::zeros({std::accumulate(regions.begin(), regions.end(), int64_t{0})});
      codes.amax = codes.all_amax.split_with_sizes(regions);
      codes.seen.resize(bucket.slots.size());
      const int64_t own = bucket.shards[static_cast<size_t>(shard_.rank())];
      codes.own = at::zeros({sharded ? own : bucket.length}, code_options());
      if (sharded) continue;
      codes.whole = codes.own;
      codes.own = shard_of(codes.whole, bucket, shard_.rank());
    }
  }

  at::Tensor owned(size_t b) const override { return owned_[b]; }

  void acquire(int64_t segment, nn::Pass pass) override {
    start_needed(segment, pass, [this](size_t b) { start(b); });
    for (const size_t b : of_segment(segment)) {
      if (codes_[b].users++ == 0) lend(b);
    }
  }
  void release(int64_t segment) override {
    for (const size_t b : of_segment(segment)) {
      if (--codes_[b].users == 0) drop(b);
    }
  }

  /// Codes are made when a segment needs them: by then delayed scales are those of the step.
  void publish() override {
    wait();
    for (Codes& codes : codes_) codes.fresh = false;
  }
  void wait() override {
    for (size_t b = 0; b < num_buckets(); ++b) {
      PT_DCHECK(codes_[b].users == 0);
      drop(b);
    }
  }

  void write(const std::function<void(nn::Param&)>& fill) override {
    publish();
    for (size_t b = 0; b < num_buckets(); ++b) {
      const at::Tensor whole = for_values(b).zero_();
      visit_values(b, whole, fill);
      owned_[b].copy_(own_part(b, whole));
    }
  }
  void read(const std::function<void(const nn::Param&)>& visit) override {
    wait();
    for (size_t b = 0; b < num_buckets(); ++b) {
      const at::Tensor whole = for_values(b);
      gather(b, whole, owned_[b]).wait();
      visit_values(b, whole, visit);
    }
  }

 private:
  struct Codes {
    at::Tensor own, whole;                ///< bytes; whole: undefined if it is not here
    at::Tensor all_amax;                  ///< of regions, those of one slot after those of another
    std::vector<at::Tensor> amax;         ///< its parts, by slot
    std::vector<float> seen;              ///< largest size that this rank owns, by slot
    bool fresh = false, gathered = false; ///< own belongs to the values; whole to own
    int users = 0;
  };

  static kernels::QuantRecipe recipe(const Bucket::Slot& slot) {
    return slot.param->low_precision->weight;
  }
  static nn::AmaxHistory* delayed(const Bucket::Slot& slot) {
    return slot.param->low_precision->delayed;
  }
  at::TensorOptions code_options() const { return owned_.front().options().dtype(at::kByte); }
  /// Memory for all values of a bucket, which is seldom needed.
  at::Tensor for_values(size_t b) const {
    const nn::MemoryScope scope(nn::MemoryCategory::kWorkspace);
    return at::empty({bucket(b).length}, owned_.front().options());
  }

  bool has_other_scale(size_t b) const {
    for (size_t i = 0; i < bucket(b).slots.size(); ++i) {
      const nn::AmaxHistory* const history = delayed(bucket(b).slots[i]);
      if (history != nullptr &&
          history->amax(nn::Operand::kWeight) != *codes_[b].amax[i].const_data_ptr<float>())
        return true;
    }
    return false;
  }

  void start(size_t b) {
    Codes& codes = codes_[b];
    if (codes.users == 0 && (!codes.fresh || has_other_scale(b))) {
      drop(b);
      encode(b);
    }
    if (codes.gathered) return;
    if (sharded_) codes.whole = pool_.take(bucket(b).length);
    works_[b] = gather(b, codes.whole, codes.own);
    codes.gathered = true;
    if (!overlap_) wait_for(b);
  }
  void encode(size_t b) {
    Codes& codes = codes_[b];
    const std::vector<Bucket::Slot>& slots = bucket(b).slots;
    const std::vector<nn::Piece> pieces = pieces_of(bucket(b), shard_.rank());
    const auto slot_of = [&](const nn::Piece& piece) {
      return static_cast<size_t>(std::ranges::find(slots, piece.param, &Bucket::Slot::param) -
                                 slots.begin());
    };
    const auto values = [&](const nn::Piece& piece) {
      return owned_[b].narrow(0, piece.begin, piece.size);
    };
    codes.all_amax.zero_();
    for (const nn::Piece& piece : pieces) {
      const size_t i = slot_of(piece);
      nn::Fp8Weight::add_amax(recipe(slots[i]), piece.param->shape(), piece.param_begin,
                              values(piece), codes.amax[i].data_ptr<float>());
    }
    std::vector<at::Tensor> most;
    for (const at::Tensor& amax : codes.amax) most.push_back(amax.max());
    if (!most.empty()) {
      const at::Tensor seen = nn::host_values(at::stack(most));
      for (size_t i = 0; i < slots.size(); ++i) codes.seen[i] = seen.const_data_ptr<float>()[i];
    }
    if (!planted("fp8_scales_of_a_shard"))
      comm::all_reduce_(codes.all_amax, comm::ReduceOp::kMax, shard_);
    for (size_t i = 0; i < slots.size(); ++i)
      if (const nn::AmaxHistory* const history = delayed(slots[i]))
        codes.amax[i].fill_(history->amax(nn::Operand::kWeight));
    for (const nn::Piece& piece : pieces) {
      const size_t i = slot_of(piece);
      nn::Fp8Weight::encode(recipe(slots[i]), piece.param->shape(), piece.param_begin,
                            values(piece), codes.amax[i].const_data_ptr<float>(),
                            codes.own.data_ptr<uint8_t>() + piece.begin);
    }
    codes.fresh = true;
    codes.gathered = false;
  }
  void lend(size_t b) {
    wait_for(b);
    const Codes& codes = codes_[b];
    for (size_t i = 0; i < codes.amax.size(); ++i) {
      const Bucket::Slot& slot = bucket(b).slots[i];
      slot.param->set_fp8(std::make_shared<const nn::Fp8Weight>(
          recipe(slot), view_of(codes.whole, slot), codes.amax[i]));
      nn::AmaxHistory* const history = delayed(slot);
      if (history != nullptr && history->wants(nn::Operand::kWeight))
        history->see(nn::Operand::kWeight, codes.seen[i]);
    }
  }
  void drop(size_t b) {
    wait_for(b);
    for (const Bucket::Slot& slot : bucket(b).slots) slot.param->set_fp8(nullptr);
    Codes& codes = codes_[b];
    if (!sharded_ || !codes.gathered) return;
    pool_.give_back(std::exchange(codes.whole, {}));
    codes.gathered = false;
  }
  template <class Fn> void visit_values(size_t b, const at::Tensor& whole, const Fn& fn) {
    for (const Bucket::Slot& slot : bucket(b).slots) {
      slot.param->set_value(view_of(whole, slot));
      fn(*slot.param);
      slot.param->set_value({});
    }
  }

  bool sharded_;
  std::vector<at::Tensor> owned_; // values, by bucket
  ScratchPool pool_;
  std::vector<Codes> codes_; // by bucket
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

std::unique_ptr<BucketValues> make_fp8_values(const std::vector<Bucket>& buckets,
                                              const BucketValuesOptions& options, bool sharded) {
  return std::make_unique<Fp8Values>(buckets, options, sharded);
}

} // namespace pentatron::parallel
