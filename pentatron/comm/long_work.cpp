#include "pentatron/comm/long_work.h"

#include "pentatron/comm/backend.h"

namespace pentatron::comm {

namespace {

std::shared_ptr<Activity> activity_of(const Group& group) {
  return group.shared_backend() ? group.shared_backend()->activity() : nullptr;
}

} // namespace

LongWork::LongWork(const Group& group, const std::string& what) : activity_(activity_of(group)) {
  if (activity_) activity_->begin(what);
}
LongWork::~LongWork() {
  if (activity_) activity_->end();
}
void LongWork::progress() const {
  if (activity_) activity_->progress();
}

ProgressTeller::ProgressTeller(const Group& group) : activity_(activity_of(group)) {}
void ProgressTeller::operator()() const {
  if (activity_) activity_->progress();
}

} // namespace pentatron::comm
