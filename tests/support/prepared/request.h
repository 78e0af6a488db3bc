/// What client.cpp sends to server.cpp: a program's start, and signals; and what comes back.
///
/// The request is a Header, then `bytes` of text ("argument\0...environment\0..."), with the
/// client's open files and its folder as SCM_RIGHTS of the header. After it the client sends a byte
/// for each signal that it gets. The server answers with one int32: the status of wait(2), or
/// kRefused if the program would start differently here; the client then starts it itself.
#pragma once

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

namespace pentatron::test::prepared {

inline constexpr const char* kVariable = "PENTATRON_PREPARED"; ///< the socket
inline constexpr int kMaxFiles = 32;
inline constexpr int32_t kRefused = -1;

struct Header {
  uint32_t num_arguments = 0, num_variables = 0;
  uint64_t bytes = 0;
  uint32_t umask = 0;
  uint32_t ignored = 0; ///< bit n: signal n is ignored
  std::array<rlimit, RLIM_NLIMITS> limits = {};
  uint32_t num_files = 0;                    ///< without the folder, which comes last
  std::array<int32_t, kMaxFiles> files = {}; ///< their numbers in the client
};

/// Whether a library reads this variable while it is loaded, or a launcher has set it.
inline bool is_read_at_load(std::string_view variable) {
  for (const std::string_view prefix :
       {"OMP_",  "GOMP_",   "KMP_",   "MALLOC_", "GLIBC_",   "LD_",          "MKL_",
        "DNNL_", "ONEDNN_", "ATEN_",  "TORCH",   "PYTORCH_", "C10_",         "OMPI_",
        "PMIX_", "PMI_",    "SLURM_", "CUDA_",   "NCCL_",    "PENTATRON_BUG"})
    if (variable.starts_with(prefix)) return true;
  return false;
}

inline bool send_all(int socket, const char* data, size_t size) {
  while (size > 0) {
    const ssize_t n = ::send(socket, data, size, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    data += n;
    size -= static_cast<size_t>(n);
  }
  return true;
}

inline bool receive_all(int socket, char* data, size_t size) {
  while (size > 0) {
    const ssize_t n = ::recv(socket, data, size, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    data += n;
    size -= static_cast<size_t>(n);
  }
  return true;
}

/// What a process was started with that a fork of another would not have.
inline std::string load_environment(char** environment) {
  std::vector<std::string> found;
  for (char** variable = environment; *variable != nullptr; ++variable)
    if (is_read_at_load(*variable)) found.emplace_back(*variable);
  std::sort(found.begin(), found.end());
  std::string all;
  for (const std::string& variable : found) (all += variable) += '\n';
  return all;
}

} // namespace pentatron::test::prepared
