// Stands in for pentatron-torch beside a copy of pentatron: a fork of the program that was loaded
// before (server.cpp) runs with the arguments, environment, folder and open files of this process;
// without a server, or where a fork would differ, this process becomes pentatron-torch.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <csignal>
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "tests/support/prepared/request.h"

namespace {

using namespace pentatron::test::prepared;

int server = -1;

extern "C" void forward(int number) {
  const char byte = static_cast<char>(number);
  [[maybe_unused]] const ssize_t n = ::send(server, &byte, 1, MSG_NOSIGNAL);
}

[[noreturn]] void become_the_program(char** argv) {
  const std::string program = PENTATRON_TORCH_PROGRAM;
  ::execv(program.c_str(), argv);
  ::_exit(127);
}

/// The numbers of the open files, sorted.
std::vector<int> open_files() {
  std::vector<int> numbers;
  DIR* const folder = ::opendir("/proc/self/fd");
  while (const dirent* entry = folder == nullptr ? nullptr : ::readdir(folder))
    if (entry->d_name[0] != '.' && std::atoi(entry->d_name) != ::dirfd(folder))
      numbers.push_back(std::atoi(entry->d_name));
  if (folder != nullptr) ::closedir(folder);
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

int connect_to(const char* path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path, sizeof address.sun_path - 1);
  const int one = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (one < 0 || ::connect(one, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return -1;
  return one;
}

bool send_request(int argc, char** argv, const std::vector<int>& files) {
  Header header;
  std::string text;
  header.num_arguments = static_cast<uint32_t>(argc);
  for (int i = 0; i < argc; ++i) text.append(argv[i], std::strlen(argv[i]) + 1);
  for (char** variable = environ; *variable != nullptr; ++variable, ++header.num_variables)
    text.append(*variable, std::strlen(*variable) + 1);
  header.bytes = text.size();
  header.umask = ::umask(0);
  ::umask(header.umask);
  for (int number = 1; number < 32; ++number) {
    struct sigaction action = {};
    if (::sigaction(number, nullptr, &action) == 0 && action.sa_handler == SIG_IGN)
      header.ignored |= 1u << number;
  }
  for (int i = 0; i < RLIM_NLIMITS; ++i)
    ::getrlimit(static_cast<__rlimit_resource>(i), &header.limits[static_cast<size_t>(i)]);
  std::vector<int> sent = files;
  header.num_files = static_cast<uint32_t>(files.size());
  std::copy(files.begin(), files.end(), header.files.begin());
  const int folder = ::open(".", O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return false;
  sent.push_back(folder);

  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * (kMaxFiles + 1))> control = {};
  iovec part = {&header, sizeof header};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = CMSG_SPACE(sizeof(int) * sent.size());
  cmsghdr* const rights = CMSG_FIRSTHDR(&message);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(sizeof(int) * sent.size());
  std::memcpy(CMSG_DATA(rights), sent.data(), sizeof(int) * sent.size());
  const bool done = ::sendmsg(server, &message, MSG_NOSIGNAL) == sizeof header &&
                    send_all(server, text.data(), text.size());
  ::close(folder);
  return done;
}

} // namespace

int main(int argc, char** argv) {
  const char* const path = std::getenv(kVariable);
  const std::vector<int> files = open_files();
  const bool standard = files.size() >= 3 && files[2] == 2 && files.size() <= kMaxFiles;
  if (path == nullptr || !standard) become_the_program(argv);
  server = connect_to(path);
  if (server < 0) become_the_program(argv);
  // Until the answer comes; what the fork ignores, this process ignores already.
  std::vector<int> forwarded;
  for (const int number : {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGCONT}) {
    struct sigaction action = {};
    if (::sigaction(number, nullptr, &action) == 0 && action.sa_handler == SIG_IGN) continue;
    action.sa_handler = forward;
    action.sa_flags = SA_RESTART;
    ::sigaction(number, &action, nullptr);
    forwarded.push_back(number);
  }
  int32_t status = kRefused;
  if (!send_request(argc, argv, files) ||
      !receive_all(server, reinterpret_cast<char*>(&status), sizeof status))
    ::_exit(126); // the server has ended: the test, too
  for (const int number : forwarded) ::signal(number, SIG_DFL);
  if (status == kRefused) become_the_program(argv);
  if (WIFSIGNALED(status)) {
    const rlimit no_core = {};
    ::setrlimit(RLIMIT_CORE, &no_core);
    ::signal(WTERMSIG(status), SIG_DFL);
    ::raise(WTERMSIG(status));
  }
  ::_exit(WEXITSTATUS(status));
}
