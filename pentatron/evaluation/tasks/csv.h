/// CSV as pandas reads it: rows, and what the cells of a column are.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "pentatron/evaluation/tasks/documents.h"

namespace pentatron::evaluation {

/// The rows of a CSV text (RFC 4180), with the cells as texts. `names`: of the columns; empty: the
/// first row has them. Throws DataError, which names `where` and the line.
Documents parse_csv(std::string_view text, const std::vector<std::string>& names, char delimiter,
                    std::string_view where);

/// Makes cells what pandas.read_csv makes of them, column by column: integers, floats or booleans
/// where all cells are; null for empty cells and for NA, None and the like. Integers with null
/// among them are floats.
void infer_cell_types(Documents& rows);

} // namespace pentatron::evaluation
