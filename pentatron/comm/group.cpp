#include "pentatron/comm/group.h"

#include "pentatron/base/error.h"
#include "pentatron/comm/backend.h"

namespace pentatron::comm {

Group::Group(std::string_view name, int world_rank)
    : name_(std::make_shared<const std::string>(name)),
      ranks_(std::make_shared<const std::vector<int>>(std::vector<int>{world_rank})) {}

Group::Group(std::shared_ptr<Backend> backend)
    : backend_(std::move(backend)), name_(backend_, &backend_->name()),
      ranks_(backend_, &backend_->ranks()), rank_(backend_->rank()) {}

Group Group::split(int color, int key, std::string_view name, GroupUse use) const {
  if (!backend_) return Group(name, ranks_->front());
  return Group(backend_->split(color, key, std::string(name), use));
}

Backend& Group::backend() const {
  if (!backend_) raise<CommError>("group {} has one rank and nothing to communicate with", *name_);
  return *backend_;
}

} // namespace pentatron::comm
