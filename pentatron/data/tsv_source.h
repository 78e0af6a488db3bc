/// A file of tab-separated values as JSON Lines.
#pragma once

#include <memory>

#include "pentatron/data/byte_source.h"

namespace pentatron::data {

/// Each line is an object whose members are its cells, all texts; as many lines as the file has,
/// the first of which is empty if it names the columns. Without names, columns are "1", "2", ...
/// Quotes have no meaning. A line with fewer cells than columns lacks the last members; cells
/// beyond the columns are left out. Bytes that are not UTF-8 stay as they are. Throws what `source`
/// throws.
std::unique_ptr<ByteSource> open_tsv(std::unique_ptr<ByteSource> source, bool first_names_columns);

} // namespace pentatron::data
