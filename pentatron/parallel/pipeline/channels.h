/// The ways of a pipeline's messages: a group of two ranks for each ordered pair of pipeline ranks
/// between which stages send.
///
/// On GPUs a group is a communicator with a stream, a send waits for its receive, and operations of
/// a stream run in order. With a group for each pair and direction, a message waits only for
/// earlier messages of its pair, so a schedule that can run where sends never wait can run there
/// too (schedule/rendezvous.h). The other way, sends and receives of a step in one call
/// (ncclGroupStart), would tie neighbours to the same steps, which only regular schedules have.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "pentatron/comm/group.h"
#include "pentatron/comm/parallel_groups.h"

namespace pentatron::pipeline {

/// The groups that Channels takes, parts of the group "pp". `training`: gradients travel too.
std::vector<comm::NeededGroup> channel_groups(const std::vector<int>& rank_of_stage, bool training);

class Channels {
 public:
  struct End {
    const comm::Group* group; ///< lives as long as the channels
    int peer;                 ///< rank in it
  };

  /// All messages go through `pipeline`: for ranks on CPUs, where sends do not wait.
  /*implicit*/ Channels(comm::Group pipeline = {}) : pipeline_(std::move(pipeline)) {}
  /// Those of channel_groups(), which `groups` must list.
  Channels(const comm::ParallelGroups& groups, const std::vector<int>& rank_of_stage,
           bool training);

  const comm::Group& pipeline() const { return pipeline_; }
  /// To send to a pipeline rank, and to receive from one. Throws Error, an internal one, if no
  /// stages are neighbours that way.
  End to(int peer) const { return end({pipeline_.rank(), peer}, peer); }
  End from(int peer) const { return end({peer, pipeline_.rank()}, peer); }

 private:
  End end(const std::pair<int, int>& pair, int peer) const;

  comm::Group pipeline_;
  bool apart_ = false;
  std::map<std::pair<int, int>, comm::Group> groups_; ///< by sender and receiver; this rank's
};

} // namespace pentatron::pipeline
