# One folder, one target, one test program. Files are found by name, so that a new one needs no line here.
#
#   pentatron_module(<folder> [TORCH|BLAS] [NO_UNITY] [USES folder...] [LIBRARIES target...])
#     builds pentatron/<folder>/**.cpp into the static library pentatron_<folder>, tests/<folder>/*_test.cpp into
#     <folder>_test and tests/fuzz/<folder>/*_fuzz.cpp into a fuzz target each. Folder separators become underscores.
#   TORCH: sources may include torch headers; they come precompiled.
#   BLAS: sources may call the BLAS symbols of libtorch_cpu, without its headers.
#   NO_UNITY: sources are compiled one by one, whatever PENTATRON_UNITY says.
#   USES: the modules this one may include, as in the table of docs/design.md; tests/structure checks the includes.
include(PentatronTest)

# Warnings and hardening, for every source of ours. PIE, full RELRO and a stack that is not executable are checked on the
# built program by tests/structure.
add_library(pentatron_options INTERFACE)
target_compile_options(
  pentatron_options
  INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wno-unknown-pragmas;-Wno-missing-field-initializers;-fPIC;-fstack-protector-strong;-fno-plt>
    $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${PENTATRON_WERROR}>>:-Werror>
    $<$<COMPILE_LANGUAGE:CXX>:-D_GLIBCXX_ASSERTIONS>)
if(PENTATRON_PLANTED_BUGS)
  target_compile_definitions(pentatron_options INTERFACE PENTATRON_PLANTED_BUGS=1)
endif()
target_link_options(pentatron_options INTERFACE -pie LINKER:-z,relro,-z,now LINKER:-z,noexecstack LINKER:--as-needed)
if(PENTATRON_SANITIZE)
  # torch's typeinfo is not instrumented, so the vptr check would only report torch.
  set(sanitize -fsanitize=${PENTATRON_SANITIZE})
  target_compile_options(pentatron_options INTERFACE ${sanitize} -fno-sanitize-recover=all -fno-omit-frame-pointer
                                                     -fno-sanitize=vptr)
  target_link_options(pentatron_options INTERFACE ${sanitize})
else()
  target_compile_options(
    pentatron_options
    INTERFACE # a property of tests, which are not optimised: PentatronTest.cmake
              $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<NOT:$<CONFIG:Debug>>,$<NOT:$<BOOL:$<TARGET_PROPERTY:PENTATRON_PLAIN_CODE>>>>:-U_FORTIFY_SOURCE;-D_FORTIFY_SOURCE=3>
              $<$<COMPILE_LANGUAGE:CXX>:-fstack-clash-protection>)
endif()

# Objects that exist only to own the precompiled headers; everything else reuses them, which needs equal flags.
function(pentatron_precompiled target header)
  set(source ${CMAKE_BINARY_DIR}/pch/${target}.cpp)
  if(NOT EXISTS ${source})
    file(WRITE ${source} "")
  endif()
  add_library(${target} OBJECT ${source})
  target_link_libraries(${target} PRIVATE LibTorch::fmt LibTorch::openmp pentatron_options ${ARGN})
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR})
  target_precompile_headers(${target} PRIVATE ${header})
endfunction()
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  set(PENTATRON_PCH OFF) # of the fuzz targets: kernels and parsers have flags of their own
endif()
if(PENTATRON_PCH)
  pentatron_precompiled(pentatron_pch_plain ${PROJECT_SOURCE_DIR}/cmake/pch_plain.h)
  pentatron_precompiled(pentatron_pch_torch ${PROJECT_SOURCE_DIR}/cmake/pch_torch.h LibTorch::cpu)
  # The preset ci compiles faster code for the kernels than for the rest; flags are part of a precompiled header.
  pentatron_precompiled(pentatron_pch_kernels ${PROJECT_SOURCE_DIR}/cmake/pch_plain.h)
  target_compile_options(pentatron_pch_kernels PRIVATE $<$<CONFIG:Release>:-O3>)
  if(PENTATRON_TESTS)
    pentatron_precompiled(pentatron_pch_plain_test ${PROJECT_SOURCE_DIR}/cmake/pch_plain_test.h pentatron_test_options)
    pentatron_precompiled(pentatron_pch_torch_test ${PROJECT_SOURCE_DIR}/cmake/pch_torch_test.h pentatron_test_options
                          LibTorch::cpu)
    set_target_properties(pentatron_pch_plain_test pentatron_pch_torch_test PROPERTIES PENTATRON_PLAIN_CODE ${PENTATRON_PLAIN_TESTS})
  endif()
endif()

# libtorch_cpu for the linker alone.
set(pentatron_torch_symbols $<LINK_ONLY:LibTorch::cpu>)

set(PENTATRON_MODULES "" CACHE INTERNAL "the modules' targets, in dependency order")
set(PENTATRON_FOLDERS "" CACHE INTERNAL "the modules' folders, in dependency order")

function(pentatron_module folder)
  cmake_parse_arguments(arg "TORCH;BLAS;NO_UNITY" "" "USES;LIBRARIES" ${ARGN})
  string(REPLACE "/" "_" name ${folder})
  set(headers plain)
  if(arg_TORCH)
    set(headers torch)
  endif()
  set(target pentatron_${name})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/pentatron/${folder}/*.cpp)
  if(PENTATRON_CUDA)
    file(GLOB_RECURSE cuda_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/pentatron/${folder}/*.cu)
    list(APPEND sources ${cuda_sources})
    list(FILTER sources EXCLUDE REGEX "/stream_graph_absent\\.cpp$")
  else()
    list(FILTER sources EXCLUDE REGEX "_cuda\\.cpp$")
  endif()
  if(PENTATRON_HAS_NCCL)
    list(FILTER sources EXCLUDE REGEX "/nccl_absent\\.cpp$")
  else()
    list(FILTER sources EXCLUDE REGEX "/nccl_backend_cuda\\.cpp$")
  endif()
  if(PENTATRON_HAS_MPI)
    list(FILTER sources EXCLUDE REGEX "/mpi_[a-z_]*absent\\.cpp$")
  else()
    list(FILTER sources EXCLUDE REGEX "/mpi_transport\\.cpp$")
  endif()

  foreach(inner IN LISTS PENTATRON_FOLDERS) # a folder inside this one may be a module of its own
    if(inner MATCHES "^${folder}/")
      list(FILTER sources EXCLUDE REGEX "/pentatron/${inner}/")
    endif()
  endforeach()
  set(PENTATRON_FOLDERS ${PENTATRON_FOLDERS} ${folder} CACHE INTERNAL "the modules' folders, in dependency order")

  if(sources)
    add_library(${target} STATIC ${sources})
    set(visibility PUBLIC)
    target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:pentatron_options>)
  else()
    add_library(${target} INTERFACE)
    set(visibility INTERFACE)
  endif()
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name})
  target_include_directories(
    ${target} ${visibility} $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:include>)
  target_compile_features(${target} ${visibility} cxx_std_20)
  # Everyone has torch's fmt and OpenMP; without -fopenmp at::parallel_for silently runs one chunk.
  target_link_libraries(${target} ${visibility} LibTorch::fmt LibTorch::openmp ${arg_LIBRARIES})
  if(arg_TORCH)
    target_link_libraries(${target} ${visibility} LibTorch::cpu)
  elseif(arg_BLAS)
    target_link_libraries(${target} ${visibility} ${pentatron_torch_symbols})
  endif()
  if(PENTATRON_CUDA AND cuda_sources)
    target_compile_definitions(${target} PRIVATE PENTATRON_CUDA=1)
    target_link_libraries(${target} PRIVATE CUDA::cudart)
  endif()
  foreach(used IN LISTS arg_USES)
    string(REPLACE "/" "_" used ${used})
    target_link_libraries(${target} ${visibility} pentatron_${used})
  endforeach()
  if(sources AND PENTATRON_PCH)
    set(precompiled ${headers})
    if(name STREQUAL "kernels")
      set(precompiled kernels)
    endif()
    target_precompile_headers(${target} REUSE_FROM pentatron_pch_${precompiled})
  endif()
  if(sources AND name STREQUAL "kernels")
    target_compile_options(${target} PRIVATE $<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-O3>)
  endif()
  if(PENTATRON_UNITY AND NOT arg_NO_UNITY)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 16)
    # The sources are included files then, whose anonymous namespaces look shared, and g++ 12 inlines std::string so far
    # that it takes its copies for overruns (GCC bugs 105329 and 105651). Builds without unity keep these warnings.
    target_compile_options(
      ${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wno-subobject-linkage;-Wno-stringop-overflow;-Wno-array-bounds;-Wno-restrict>)
  endif()
  add_library(pentatron::${name} ALIAS ${target})
  set(PENTATRON_MODULES ${PENTATRON_MODULES} ${target} CACHE INTERNAL "the modules' targets, in dependency order")

  if(PENTATRON_TESTS)
    set(support "")
    if(arg_TORCH)
      set(support pentatron_test_support)
    endif()
    file(GLOB tests CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/${folder}/*_test.cpp)
    if(tests)
      pentatron_test(${name}_test HEADERS ${headers} SOURCES ${tests} LIBRARIES ${target} ${support})
    endif()
  endif()
  file(GLOB fuzzers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/fuzz/${folder}/*_fuzz.cpp
       ${PROJECT_SOURCE_DIR}/tests/${folder}/*_fuzz.cpp)
  foreach(fuzzer IN LISTS fuzzers)
    pentatron_fuzzer(${fuzzer} LIBRARIES ${target})
  endforeach()
endfunction()

# Benchmarks: benchmarks/<folder>/*_bench.cpp into bench_<folder>.
function(pentatron_benchmark folder)
  cmake_parse_arguments(arg "" "" "LIBRARIES" ${ARGN})
  string(REPLACE "/" "_" name ${folder})
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/benchmarks/${folder}/*_bench.cpp)
  if(sources)
    add_executable(bench_${name} ${sources})
    target_link_libraries(bench_${name} PRIVATE pentatron_options ${arg_LIBRARIES} LibTorch::cpu LibTorch::openmp
                                                benchmark::benchmark_main)
    target_include_directories(bench_${name} PRIVATE ${PROJECT_SOURCE_DIR})
    if(PENTATRON_PCH)
      target_precompile_headers(bench_${name} REUSE_FROM pentatron_pch_torch)
    endif()
  endif()
endfunction()
