/// One selection for machines that differ: every class runs an entry that all of them can run.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "pentatron/kernels/selection/measure.h"
#include "pentatron/kernels/selection/selection.h"

namespace pentatron::kernels {

/// Class name -> names of the entries that a machine can run, in list order.
using RunnableEntries = std::map<std::string, std::vector<std::string>>;
/// Of this machine.
RunnableEntries runnable_entries();

/// As text for other ranks, and back. Throws DataError.
std::string to_text(const RunnableEntries& entries);
RunnableEntries parse_runnable_entries(std::string_view text);

struct Agreement {
  Selection selection;
  /// Class name -> a sentence, for each choice that a rank cannot run: what runs instead.
  std::map<std::string, std::string> replaced;
};

/// `selection` for ranks that can run `ranks[r]`. A choice that some rank cannot run becomes the
/// first entry of rank 0's list that all can run; so does list order where the ranks' first entries
/// differ. A class without a common entry has no choice.
Agreement agree(const Selection& selection, const std::vector<RunnableEntries>& ranks);

/// `selection` with an entry for each class of `options` that it has none for: the first one of
/// rank 0's list that all ranks can run. On machines with the same first entry that is list order.
Selection with_list_order(const Selection& selection, const std::vector<RunnableEntries>& ranks,
                          const MeasureOptions& options);

} // namespace pentatron::kernels
