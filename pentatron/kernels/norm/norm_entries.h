/// The implementations behind norm.h; norm.cpp orders them.
#pragma once

#include <string>

#include "pentatron/kernels/norm/norm.h"

namespace pentatron::kernels {

struct NormReference {
  static std::string refuse(const NormForward& args, const Context& context);
  static std::string refuse(const NormBackward& args, const Context& context);
  static void run(const NormForward& args, const Context& context);
  static void run(const NormBackward& args, const Context& context);
};

struct NormAvx2 {
  static std::string refuse(const NormForward& args, const Context& context);
  static std::string refuse(const NormBackward& args, const Context& context);
  static void run(const NormForward& args, const Context& context);
  static void run(const NormBackward& args, const Context& context);
};

struct NormAvx512 {
  static std::string refuse(const NormForward& args, const Context& context);
  static std::string refuse(const NormBackward& args, const Context& context);
  static void run(const NormForward& args, const Context& context);
  static void run(const NormBackward& args, const Context& context);
};

/// Only in builds with PENTATRON_CUDA.
struct NormCuda {
  static std::string refuse(const NormForward& args, const Context& context);
  static std::string refuse(const NormBackward& args, const Context& context);
  static void run(const NormForward& args, const Context& context);
  static void run(const NormBackward& args, const Context& context);
};

} // namespace pentatron::kernels
