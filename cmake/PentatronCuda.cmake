# The CUDA language, one architecture (90 unless CMAKE_CUDA_ARCHITECTURES says otherwise). nvcc is taken from PATH, from
# CUDA_HOME or /usr/local/cuda, or from the PyPI packages in .deps/cuda (scripts/test.sh installs them).
if(NOT CMAKE_CUDA_COMPILER)
  file(GLOB _pypi ${PROJECT_SOURCE_DIR}/.deps/cuda/lib/python3*/site-packages/nvidia/cu*/bin)
  find_program(CMAKE_CUDA_COMPILER nvcc HINTS ENV CUDA_HOME PATH_SUFFIXES bin PATHS /usr/local/cuda/bin ${_pypi})
endif()
if(NOT CMAKE_CUDA_COMPILER)
  message(FATAL_ERROR "PENTATRON_CUDA=ON needs nvcc, and it is neither on PATH nor in CUDA_HOME, /usr/local/cuda or "
                      ".deps/cuda\n  try: scripts/test.sh, which installs nvcc from PyPI into .deps/cuda")
endif()
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 90)
endif()
set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)
enable_language(CUDA)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc has C++20
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
endif()
# Products and sums round one by one, as in the reference: the optimizer's kernels promise its bits.
add_compile_options($<$<COMPILE_LANGUAGE:CUDA>:--fmad=false>)
find_package(CUDAToolkit REQUIRED)

# NCCL comes beside torch's wheel or with a toolkit; without it the build has GPUs for one rank only. Sets PENTATRON_HAS_NCCL.
file(GLOB _nccl ${PROJECT_SOURCE_DIR}/.deps/*/lib/python3*/site-packages/nvidia/nccl)
if(TORCH_ROOT OR DEFINED ENV{TORCH_ROOT})
  file(GLOB _beside_torch ${TORCH_ROOT}/../nvidia/nccl $ENV{TORCH_ROOT}/../nvidia/nccl)
  list(PREPEND _nccl ${_beside_torch})
endif()
find_path(PENTATRON_NCCL_INCLUDE_DIR nccl.h HINTS ${_nccl} PATH_SUFFIXES include PATHS ${CUDAToolkit_INCLUDE_DIRS})
find_library(PENTATRON_NCCL_LIBRARY NAMES nccl libnccl.so.2 HINTS ${_nccl} PATH_SUFFIXES lib PATHS ${CUDAToolkit_LIBRARY_DIR})
set(PENTATRON_HAS_NCCL OFF)
if(PENTATRON_NCCL_INCLUDE_DIR AND PENTATRON_NCCL_LIBRARY)
  set(PENTATRON_HAS_NCCL ON)
  message(STATUS "NCCL: ${PENTATRON_NCCL_LIBRARY}")
else()
  message(STATUS "NCCL was not found: several ranks will have no GPUs")
endif()
