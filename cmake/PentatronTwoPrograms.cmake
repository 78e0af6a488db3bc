# In a build with CUDA: the program twice, from the same objects. pentatron-torch-cuda needs libtorch_cuda; pentatron-torch does not,
# so it runs beside a torch without CUDA, and starts faster on a machine without a GPU. pentatron chooses (main.cpp).
#
# pentatron-torch takes the few sources that differ compiled without PENTATRON_CUDA; the linker then leaves their namesakes in
# the archives, and with them everything that needs CUDA.
set(differing comm/backend/nccl/nccl_absent.cpp nn/stream_graph_absent.cpp)
file(GLOB_RECURSE kernel_sources RELATIVE ${CMAKE_CURRENT_SOURCE_DIR} CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/kernels/*.cpp)
foreach(source IN LISTS kernel_sources)
  file(STRINGS ${source} uses REGEX "PENTATRON_CUDA")
  if(uses)
    list(APPEND differing ${source})
  endif()
endforeach()
add_library(pentatron_without_cuda OBJECT ${differing})
target_link_libraries(pentatron_without_cuda PRIVATE pentatron_options LibTorch::fmt LibTorch::openmp)
target_include_directories(pentatron_without_cuda PRIVATE ${PROJECT_SOURCE_DIR})
target_compile_options(pentatron_without_cuda PRIVATE $<$<CONFIG:Release>:-O3>)
if(PENTATRON_PCH)
  target_precompile_headers(pentatron_without_cuda REUSE_FROM pentatron_pch_kernels)
endif()
target_sources(pentatron-torch PRIVATE $<TARGET_OBJECTS:pentatron_without_cuda>)

add_executable(pentatron-torch-cuda torch_main.cpp)
target_link_libraries(pentatron-torch-cuda PRIVATE pentatron_cli pentatron_options LibTorch::cuda)
add_dependencies(pentatron pentatron-torch-cuda)
