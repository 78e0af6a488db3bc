// Precompiled for every source that sees torch: parsing these costs 3 to 7 s.
#pragma once
#include "cmake/pch_plain.h"

#include <ATen/ATen.h>
