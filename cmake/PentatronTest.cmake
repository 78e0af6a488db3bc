# Test programs and fuzz targets, and their entries in ctest.

# What a test runs under: waiting threads sleep, because tests share the cores; measured kernels are kept in the build folder.
set(PENTATRON_TEST_ENVIRONMENT OMP_WAIT_POLICY=PASSIVE PYTHONDONTWRITEBYTECODE=1 XDG_CACHE_HOME=${CMAKE_BINARY_DIR}/cache)

# What tests compile with: the code under test is optimised, its tests need not be, and g++ takes two thirds of the time. Not so
# the tests of kernels, which have intrinsics and sums to compare with, and whole runs that link a few objects of tests: the linker
# takes functions of headers (of ATen, JSON) from the test, and runs took a third longer (trainer_test links the modules first, but not in bundles, which
# would grow).
string(COMPARE EQUAL "${CMAKE_BUILD_TYPE}" Release PENTATRON_PLAIN_TESTS)
add_library(pentatron_test_options INTERFACE)
target_link_libraries(pentatron_test_options INTERFACE pentatron_options LibTorch::openmp GTest::gmock)
# At -O1 g++ 12 takes std::string's copies for overruns (GCC bugs 105329 and 105651).
target_compile_options(
  pentatron_test_options INTERFACE $<$<BOOL:$<TARGET_PROPERTY:PENTATRON_PLAIN_CODE>>:-O0> -Wno-array-bounds -Wno-stringop-overflow
                                   -Wno-restrict)

# Precompiled headers of a test: plain or torch.
function(pentatron_test_headers target headers)
  if(target MATCHES "^(kernels|trainer_process)_test$|roofline" OR (PENTATRON_CUDA AND target STREQUAL trainer_test))
    set(precompiled pentatron_pch_${headers})
  else()
    set_target_properties(${target} PROPERTIES PENTATRON_PLAIN_CODE ${PENTATRON_PLAIN_TESTS})
    set(precompiled pentatron_pch_${headers}_test)
  endif()
  if(PENTATRON_PCH)
    target_precompile_headers(${target} REUSE_FROM ${precompiled})
  endif()
endfunction()

if(PENTATRON_TESTS)
  add_library(pentatron_test_main STATIC ${PROJECT_SOURCE_DIR}/tests/support/test_main.cpp)
  target_link_libraries(pentatron_test_main PRIVATE pentatron_test_options)
  target_include_directories(pentatron_test_main PRIVATE ${PROJECT_SOURCE_DIR})
  if(PENTATRON_SANITIZE STREQUAL "thread")
    target_sources(pentatron_test_main PRIVATE ${PROJECT_SOURCE_DIR}/tests/support/openmp_order.cpp)
  endif()
endif()

# Tests that start the program many times run under this command and these variables: tests/support/prepared/README.md. The
# variables are those that the launcher sets (pentatron/main.cpp), too.
if(PENTATRON_SANITIZE)
  set(PENTATRON_PREPARED_PROGRAM ${CMAKE_BINARY_DIR}/pentatron)
  set(PENTATRON_PREPARED_LAUNCHER "")
  set(PENTATRON_PREPARED_VARIABLES "")
else()
  set(PENTATRON_PREPARED_PROGRAM ${CMAKE_BINARY_DIR}/prepared/pentatron)
  set(PENTATRON_PREPARED_LAUNCHER ${CMAKE_BINARY_DIR}/pentatron-torch)
  set(PENTATRON_PREPARED_VARIABLES LD_PRELOAD=${CMAKE_BINARY_DIR}/prepared/libprepared_program.so
                                   MALLOC_MMAP_THRESHOLD_=33554432 MALLOC_TRIM_THRESHOLD_=8589934592)
endif()

# pentatron_test(<name> HEADERS plain|torch SOURCES file... LIBRARIES target...): a GoogleTest program.
# ctest has one entry a test suite (a process loads torch for 0.4 s). Tests with "Slow" in their name or suite carry
# the label slow, with "Cuda" the label cuda, the rest the label fast.
function(pentatron_test name)
  cmake_parse_arguments(arg "" "HEADERS" "SOURCES;LIBRARIES" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE pentatron_test_options ${arg_LIBRARIES} pentatron_test_main)
  if(arg_HEADERS STREQUAL "torch" AND PENTATRON_CUDA AND TARGET LibTorch::cuda)
    target_link_libraries(${name} PRIVATE LibTorch::cuda)
  endif()
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_compile_definitions(${name} PRIVATE PENTATRON_TEST_DATA="${PROJECT_SOURCE_DIR}/tests/data")
  pentatron_test_headers(${name} ${arg_HEADERS})
  if(PENTATRON_UNITY)
    set_target_properties(${name} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 7)
    target_compile_options(${name} PRIVATE -Wno-subobject-linkage)
  endif()

  # ctest reads this file when it starts; it lists the program's tests again only when the program is newer.
  set(include_file ${CMAKE_CURRENT_BINARY_DIR}/${name}_discover.cmake)
  file(GENERATE OUTPUT ${include_file} CONTENT "
set(program [[$<TARGET_FILE:${name}>]])
set(name [[${name}]])
set(tests_file [[${CMAKE_CURRENT_BINARY_DIR}/${name}_tests.cmake]])
set(working_directory [[${CMAKE_BINARY_DIR}]])
set(environment [[${PENTATRON_TEST_ENVIRONMENT};$<TARGET_PROPERTY:${name},PENTATRON_TEST_VARIABLES>]])
set(launcher [[$<TARGET_PROPERTY:${name},PENTATRON_TEST_LAUNCHER>]])
set(sanitized [[${PENTATRON_SANITIZE}]])
include([[${PROJECT_SOURCE_DIR}/cmake/discover_suites.cmake]])
")
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${include_file})
endfunction()

# pentatron_fuzzer(<file> LIBRARIES target...): a source with LLVMFuzzerTestOneInput. Under PENTATRON_FUZZ it is linked with
# libFuzzer; otherwise tests/support/fuzz_main.cpp runs it over its seeds in tests/data/fuzz/<name>/ and mutations of them.
if(PENTATRON_FUZZ)
  add_custom_target(fuzzers)
elseif(PENTATRON_TESTS)
  add_library(pentatron_fuzz_main STATIC ${PROJECT_SOURCE_DIR}/tests/support/fuzz_main.cpp)
  target_link_libraries(pentatron_fuzz_main PRIVATE pentatron_options)
  target_include_directories(pentatron_fuzz_main PRIVATE ${PROJECT_SOURCE_DIR})
endif()
function(pentatron_fuzzer source)
  cmake_parse_arguments(arg "" "" "LIBRARIES" ${ARGN})
  get_filename_component(name ${source} NAME_WE)
  set(seeds ${PROJECT_SOURCE_DIR}/tests/data/fuzz/${name})
  if(PENTATRON_FUZZ)
    add_executable(${name} ${source})
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
    set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/fuzzers)
    add_dependencies(fuzzers ${name})
  elseif(PENTATRON_TESTS)
    add_executable(${name} ${source})
    target_link_libraries(${name} PRIVATE pentatron_fuzz_main)
    if(NOT EXISTS ${seeds})
      set(seeds "")
    endif()
    add_test(NAME fuzz.${name} COMMAND ${name} ${seeds})
    set_tests_properties(fuzz.${name} PROPERTIES LABELS fast TIMEOUT 300 ENVIRONMENT "${PENTATRON_TEST_ENVIRONMENT}")
  else()
    return()
  endif()
  target_link_libraries(${name} PRIVATE pentatron_options LibTorch::openmp LibTorch::fmt ${arg_LIBRARIES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  if(PENTATRON_PCH)
    target_precompile_headers(${name} REUSE_FROM pentatron_pch_plain)
  endif()
endfunction()
