# Whether libtorch_cpu exports the products of Intel MKL (64-bit interface). Sets PENTATRON_HAS_MKL.
include(CheckCXXSourceCompiles)
set(CMAKE_REQUIRED_LIBRARIES LibTorch::cpu)
check_cxx_source_compiles(
  "extern \"C\" { void sgemm_64_(); void gemm_bf16bf16f32_64_(); int MKL_Set_Num_Threads_Local(int); }
   int main() { sgemm_64_(); gemm_bf16bf16f32_64_(); return MKL_Set_Num_Threads_Local(1); }"
  PENTATRON_HAS_MKL)
unset(CMAKE_REQUIRED_LIBRARIES)
