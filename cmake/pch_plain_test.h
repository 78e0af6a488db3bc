#pragma once
#include "cmake/pch_plain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
