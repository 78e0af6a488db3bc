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
find_package(CUDAToolkit REQUIRED)
