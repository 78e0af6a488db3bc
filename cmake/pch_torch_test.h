#pragma once
#include "cmake/pch_torch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
