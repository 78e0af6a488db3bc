# One folder, one target, one test program. Files are found by name, so that a new one needs no line here.
#
#   pentatron_module(<folder> [TORCH] [USES folder...] [LIBRARIES target...])
#     builds pentatron/<folder>/**.cpp (minus the folders of other modules below it) into the static library
#     pentatron_<folder>, and tests/<folder>/*_test.cpp into <folder>_test. Folder separators become underscores.
#   TORCH: sources may include torch headers; they come precompiled.
#   USES: the modules this one may include, as in the table of docs/design.md; tests/structure checks the includes.
include(GoogleTest)

add_library(pentatron_options INTERFACE)
target_compile_options(
  pentatron_options
  INTERFACE -Wall -Wextra -Wno-unknown-pragmas $<$<BOOL:${PENTATRON_WERROR}>:-Werror> -fPIC -fopenmp
            -fstack-protector-strong -fno-plt $<$<CONFIG:Release>:-D_FORTIFY_SOURCE=2> -D_GLIBCXX_ASSERTIONS)
target_link_options(pentatron_options INTERFACE -pie LINKER:-z,relro,-z,now LINKER:-z,noexecstack)
if(PENTATRON_SANITIZE)
  target_compile_options(pentatron_options INTERFACE -fsanitize=${PENTATRON_SANITIZE} -fno-omit-frame-pointer)
  target_link_options(pentatron_options INTERFACE -fsanitize=${PENTATRON_SANITIZE})
endif()

# The header-only parts of torch that every module may use: its fmt (g++ 12 has no std::format).
add_library(pentatron_fmt INTERFACE)
target_include_directories(pentatron_fmt SYSTEM INTERFACE $<BUILD_INTERFACE:${LibTorch_ROOT}/include>)
target_compile_definitions(pentatron_fmt INTERFACE FMT_HEADER_ONLY=1)

function(pentatron_precompile target header)
  if(PENTATRON_PCH)
    target_precompile_headers(${target} PRIVATE ${header})
  endif()
endfunction()

# Objects that exist only to own the two precompiled headers.
file(WRITE ${CMAKE_BINARY_DIR}/pch/empty.cpp.in "")
configure_file(${CMAKE_BINARY_DIR}/pch/empty.cpp.in ${CMAKE_BINARY_DIR}/pch/torch.cpp COPYONLY)
configure_file(${CMAKE_BINARY_DIR}/pch/empty.cpp.in ${CMAKE_BINARY_DIR}/pch/test.cpp COPYONLY)
add_library(pentatron_pch_torch OBJECT ${CMAKE_BINARY_DIR}/pch/torch.cpp)
target_link_libraries(pentatron_pch_torch PRIVATE LibTorch::cpu pentatron_options pentatron_fmt)
target_include_directories(pentatron_pch_torch PRIVATE ${PROJECT_SOURCE_DIR})
pentatron_precompile(pentatron_pch_torch ${PROJECT_SOURCE_DIR}/cmake/pch_torch.h)
add_library(pentatron_pch_test OBJECT ${CMAKE_BINARY_DIR}/pch/test.cpp)
target_link_libraries(pentatron_pch_test PRIVATE LibTorch::cpu pentatron_options pentatron_fmt GTest::gmock)
target_include_directories(pentatron_pch_test PRIVATE ${PROJECT_SOURCE_DIR})
pentatron_precompile(pentatron_pch_test ${PROJECT_SOURCE_DIR}/cmake/pch_test.h)

set(PENTATRON_MODULES "" CACHE INTERNAL "")

function(pentatron_module folder)
  cmake_parse_arguments(arg "TORCH" "" "USES;LIBRARIES;EXCLUDE" ${ARGN})
  string(REPLACE "/" "_" name ${folder})
  set(target pentatron_${name})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/pentatron/${folder}/*.cpp)
  foreach(excluded IN LISTS arg_EXCLUDE)
    list(FILTER sources EXCLUDE REGEX "pentatron/${excluded}/")
  endforeach()
  if(PENTATRON_CUDA)
    file(GLOB_RECURSE cuda_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/pentatron/${folder}/*.cu)
    list(APPEND sources ${cuda_sources})
  else()
    list(FILTER sources EXCLUDE REGEX "_cuda\\.cpp$")
  endif()
  if(sources)
    add_library(${target} STATIC ${sources})
    set(visibility PUBLIC)
    target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:pentatron_options> $<BUILD_INTERFACE:pentatron_fmt>)
  else()
    add_library(${target} INTERFACE)
    set(visibility INTERFACE)
  endif()
  target_include_directories(
    ${target} ${visibility} $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:include>)
  foreach(used IN LISTS arg_USES)
    string(REPLACE "/" "_" used ${used})
    target_link_libraries(${target} ${visibility} pentatron_${used})
  endforeach()
  target_link_libraries(${target} ${visibility} ${arg_LIBRARIES})
  if(arg_TORCH)
    target_link_libraries(${target} ${visibility} LibTorch::cpu)
    if(sources AND PENTATRON_PCH)
      target_precompile_headers(${target} REUSE_FROM pentatron_pch_torch)
    endif()
  endif()
  add_library(pentatron::${name} ALIAS ${target})
  set(PENTATRON_MODULES ${PENTATRON_MODULES} ${target} CACHE INTERNAL "")

  file(GLOB tests CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/${folder}/*_test.cpp)
  if(tests AND PENTATRON_TESTS)
    pentatron_test(${name}_test SOURCES ${tests} LIBRARIES ${target} $<$<BOOL:${arg_TORCH}>:pentatron_test_support>)
  endif()
endfunction()

# pentatron_test(<name> SOURCES file... LIBRARIES target...): a GoogleTest program. A test whose name begins with "Slow"
# carries the label slow, "Cuda" the label cuda, the rest the label fast.
function(pentatron_test name)
  cmake_parse_arguments(arg "" "" "SOURCES;LIBRARIES" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE pentatron_options pentatron_fmt ${arg_LIBRARIES} LibTorch::cpu GTest::gmock
                                        GTest::gtest_main)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_compile_definitions(${name} PRIVATE PENTATRON_TEST_DATA="${PROJECT_SOURCE_DIR}/tests/data")
  if(PENTATRON_PCH)
    target_precompile_headers(${name} REUSE_FROM pentatron_pch_test)
  endif()
  set(common DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60 WORKING_DIRECTORY ${CMAKE_BINARY_DIR})
  gtest_discover_tests(${name} ${common} TEST_FILTER "-*Slow*:*Cuda*" PROPERTIES LABELS fast TIMEOUT 300)
  gtest_discover_tests(${name} ${common} TEST_FILTER "*Slow*" TEST_LIST ${name}_slow PROPERTIES LABELS slow TIMEOUT 1500)
  gtest_discover_tests(${name} ${common} TEST_FILTER "*Cuda*" TEST_LIST ${name}_cuda PROPERTIES LABELS cuda TIMEOUT 900)
endfunction()

# Benchmarks: benchmarks/<folder>/*_bench.cpp into bench_<folder>.
function(pentatron_benchmark folder)
  cmake_parse_arguments(arg "" "" "LIBRARIES" ${ARGN})
  string(REPLACE "/" "_" name ${folder})
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/benchmarks/${folder}/*_bench.cpp)
  if(sources)
    add_executable(bench_${name} ${sources})
    target_link_libraries(bench_${name} PRIVATE pentatron_options pentatron_fmt ${arg_LIBRARIES} LibTorch::cpu
                                                benchmark::benchmark_main)
    target_include_directories(bench_${name} PRIVATE ${PROJECT_SOURCE_DIR})
    if(PENTATRON_PCH)
      target_precompile_headers(bench_${name} REUSE_FROM pentatron_pch_torch)
    endif()
  endif()
endfunction()
