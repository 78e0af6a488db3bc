# Finds the LibTorch inside a Python wheel (or an unpacked libtorch) and defines LibTorch::c10, LibTorch::cpu,
# LibTorch::fmt (the headers of torch's copy of fmt; pentatron/base/fmt.cpp compiles the rest), LibTorch::openmp and, where
# its CUDA libraries are there, LibTorch::cuda. torch's own TorchConfig.cmake is not used: it refuses to configure without a CUDA toolkit.
#
# Looked at in order: TORCH_ROOT (CMake or environment), Torch_DIR, CMAKE_PREFIX_PATH, .deps/venv of this project,
# LibTorch_FALLBACK_ROOT (the torch an installed pentatron was built with), the active virtual environment, python3. The
# module is found with find_spec, never imported.
include(FindPackageHandleStandardArgs)

# A changed TORCH_ROOT wins over what an earlier configure found.
set(_root "$ENV{TORCH_ROOT}")
if(TORCH_ROOT)
  set(_root "${TORCH_ROOT}")
endif()
if(_root AND LibTorch_CPU_LIBRARY AND NOT LibTorch_CPU_LIBRARY STREQUAL "${_root}/lib/libtorch_cpu.so")
  foreach(_variable IN ITEMS INCLUDE_DIR CPU_LIBRARY C10_LIBRARY CUDA_LIBRARY C10_CUDA_LIBRARY)
    unset(LibTorch_${_variable} CACHE)
  endforeach()
endif()

set(_hints "")
foreach(_root IN ITEMS "${TORCH_ROOT}" "$ENV{TORCH_ROOT}")
  if(_root)
    list(APPEND _hints "${_root}")
  endif()
endforeach()
if(Torch_DIR)
  get_filename_component(_root "${Torch_DIR}/../../.." ABSOLUTE)
  list(APPEND _hints "${_root}")
endif()
foreach(_prefix IN LISTS CMAKE_PREFIX_PATH)
  list(APPEND _hints "${_prefix}" "${_prefix}/torch" "${_prefix}/../..")
endforeach()
file(GLOB _venv "${CMAKE_SOURCE_DIR}/.deps/venv/lib/python3*/site-packages/torch")
list(APPEND _hints ${_venv} ${LibTorch_FALLBACK_ROOT})
if(NOT LibTorch_INCLUDE_DIR)
  foreach(_python IN ITEMS "${Python3_EXECUTABLE}" "$ENV{VIRTUAL_ENV}/bin/python" python3)
    if(_python)
      execute_process(
        COMMAND "${_python}" -c "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')"
        OUTPUT_VARIABLE _found OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
      if(_found)
        list(APPEND _hints "${_found}")
      endif()
    endif()
  endforeach()
endif()

find_path(LibTorch_INCLUDE_DIR torch/version.h PATHS ${_hints}
          PATH_SUFFIXES include include/torch/csrc/api/include NO_DEFAULT_PATH)
find_library(LibTorch_CPU_LIBRARY torch_cpu HINTS ${_hints} PATH_SUFFIXES lib NO_DEFAULT_PATH)
find_library(LibTorch_C10_LIBRARY c10 HINTS ${_hints} PATH_SUFFIXES lib NO_DEFAULT_PATH)
find_library(LibTorch_CUDA_LIBRARY torch_cuda HINTS ${_hints} PATH_SUFFIXES lib NO_DEFAULT_PATH)
find_library(LibTorch_C10_CUDA_LIBRARY c10_cuda HINTS ${_hints} PATH_SUFFIXES lib NO_DEFAULT_PATH)
mark_as_advanced(LibTorch_INCLUDE_DIR LibTorch_CPU_LIBRARY LibTorch_C10_LIBRARY LibTorch_CUDA_LIBRARY
                 LibTorch_C10_CUDA_LIBRARY)

if(LibTorch_CPU_LIBRARY)
  get_filename_component(LibTorch_LIBRARY_DIR "${LibTorch_CPU_LIBRARY}" DIRECTORY)
  get_filename_component(LibTorch_ROOT "${LibTorch_LIBRARY_DIR}" DIRECTORY)
  foreach(_file include/torch/headeronly/version.h include/torch/version.h
                include/torch/csrc/api/include/torch/version.h)
    if(NOT LibTorch_VERSION AND EXISTS "${LibTorch_ROOT}/${_file}")
      file(STRINGS "${LibTorch_ROOT}/${_file}" _lines REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
      if(_lines)
        string(REGEX REPLACE "[^0-9;]" "" _lines "${_lines}")
        string(REPLACE ";" "." LibTorch_VERSION "${_lines}")
      endif()
    endif()
  endforeach()
  # libtorch_cpu.so needs libcudart and libcupti at link time even without a GPU; they lie beside it in the wheels.
  get_filename_component(_site "${LibTorch_ROOT}" DIRECTORY)
  file(GLOB _nvidia "${_site}/nvidia/*/lib" "${_site}/cusparselt/lib")
  set(LibTorch_RUNTIME_DIRS "${LibTorch_LIBRARY_DIR}")
  foreach(_dir IN LISTS _nvidia ITEMS /usr/local/cuda/lib64 /usr/local/cuda/extras/CUPTI/lib64)
    file(GLOB _libraries "${_dir}/*.so.*")
    if(_libraries)
      list(APPEND LibTorch_RUNTIME_DIRS "${_dir}")
    endif()
  endforeach()
endif()

find_package_handle_standard_args(
  LibTorch REQUIRED_VARS LibTorch_CPU_LIBRARY LibTorch_C10_LIBRARY LibTorch_INCLUDE_DIR
  VERSION_VAR LibTorch_VERSION)

if(LibTorch_FOUND AND NOT TARGET LibTorch::cpu)
  add_library(LibTorch::fmt INTERFACE IMPORTED)
  set_target_properties(LibTorch::fmt PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${LibTorch_ROOT}/include")
  # libgomp is linked by flag, not by path: at run time torch's own copy, found first, is the only OpenMP in the process.
  add_library(LibTorch::openmp INTERFACE IMPORTED)
  set_target_properties(
    LibTorch::openmp
    PROPERTIES INTERFACE_COMPILE_OPTIONS "$<$<COMPILE_LANGUAGE:CXX>:-fopenmp>" INTERFACE_LINK_OPTIONS -fopenmp)
  add_library(LibTorch::c10 SHARED IMPORTED)
  set_target_properties(
    LibTorch::c10
    PROPERTIES IMPORTED_LOCATION "${LibTorch_C10_LIBRARY}"
               INTERFACE_INCLUDE_DIRECTORIES "${LibTorch_ROOT}/include;${LibTorch_ROOT}/include/torch/csrc/api/include"
               INTERFACE_COMPILE_DEFINITIONS "USE_DISTRIBUTED;AT_PER_OPERATOR_HEADERS")
  add_library(LibTorch::cpu SHARED IMPORTED)
  set_target_properties(LibTorch::cpu PROPERTIES IMPORTED_LOCATION "${LibTorch_CPU_LIBRARY}"
                                                 INTERFACE_LINK_LIBRARIES LibTorch::c10)
  foreach(_dir IN LISTS LibTorch_RUNTIME_DIRS)
    set_property(TARGET LibTorch::cpu APPEND PROPERTY INTERFACE_LINK_OPTIONS "LINKER:-rpath-link,${_dir}"
                                                      "LINKER:-rpath,${_dir}")
  endforeach()
  if(LibTorch_CUDA_LIBRARY AND LibTorch_C10_CUDA_LIBRARY)
    # No symbol of libtorch_cuda is named anywhere: it registers its operators when it is loaded, so it must stay linked. Its
    # own needs (cuDNN, NCCL ...) are resolved when the program starts.
    add_library(LibTorch::cuda INTERFACE IMPORTED)
    set_target_properties(
      LibTorch::cuda
      PROPERTIES INTERFACE_LINK_LIBRARIES
                 "-Wl,--push-state,--no-as-needed,${LibTorch_CUDA_LIBRARY},${LibTorch_C10_CUDA_LIBRARY},--pop-state;LibTorch::cpu"
                 INTERFACE_LINK_OPTIONS "LINKER:--allow-shlib-undefined")
  endif()
endif()
