// Loaded before pentatron-torch by LD_PRELOAD: when LibTorch is loaded and the program would begin,
// the process runs a test command instead and serves client.cpp: each start of the program is a
// fork of this process, which goes on into the program's own main. Loading LibTorch takes 0.4 s.
//
//   LD_PRELOAD=libprepared_program.so pentatron-torch TEST [ARGUMENT...]
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <csignal>
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "tests/support/prepared/request.h"

namespace {

using namespace pentatron::test::prepared;
using Main = int (*)(int, char**, char**);

Main program_main = nullptr;

struct Client {
  int socket = -1;
  pid_t child = -1;
};

struct Request {
  Header header;
  std::vector<char> text;
  std::vector<int> files; ///< the folder last
};

[[noreturn]] void fail(const char* what) {
  std::perror(what);
  ::_exit(125);
}

bool receive(int socket, Request& request) {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * (kMaxFiles + 1))> control = {};
  iovec part = {&request.header, sizeof request.header};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  if (::recvmsg(socket, &message, MSG_WAITALL | MSG_CMSG_CLOEXEC) != sizeof request.header)
    return false;
  for (cmsghdr* one = CMSG_FIRSTHDR(&message); one != nullptr; one = CMSG_NXTHDR(&message, one)) {
    if (one->cmsg_type != SCM_RIGHTS) continue;
    request.files.resize((one->cmsg_len - CMSG_LEN(0)) / sizeof(int));
    std::memcpy(request.files.data(), CMSG_DATA(one), request.files.size() * sizeof(int));
  }
  request.text.resize(request.header.bytes);
  return receive_all(socket, request.text.data(), request.text.size()) &&
         request.files.size() == request.header.num_files + 1;
}

/// Whether a process of its own would start as a fork of this one does.
bool starts_alike(const Header& header, char** environment, const std::string& own) {
  uint32_t ignored = 0;
  for (int number = 1; number < 32; ++number) {
    struct sigaction action = {};
    if (::sigaction(number, nullptr, &action) == 0 && action.sa_handler == SIG_IGN)
      ignored |= 1u << number;
  }
  for (int i = 0; i < RLIM_NLIMITS; ++i) {
    rlimit limit = {};
    ::getrlimit(static_cast<__rlimit_resource>(i), &limit);
    const rlimit& asked = header.limits[static_cast<size_t>(i)];
    if (asked.rlim_cur != limit.rlim_cur || asked.rlim_max != limit.rlim_max) return false;
  }
  return ignored == header.ignored && load_environment(environment) == own;
}

/// In the fork: the program, with the client's arguments, environment, folder and files.
[[noreturn]] void run_program(const Request& request, std::vector<char*> argv,
                              std::vector<char*> variables, const sigset_t& mask) {
  const std::vector<int>& files = request.files;
  if (::fchdir(files.back()) != 0) fail("fchdir");
  // First above all numbers that are wanted, then to their places.
  std::vector<int> high;
  for (size_t i = 0; i + 1 < files.size(); ++i)
    high.push_back(::fcntl(files[i], F_DUPFD_CLOEXEC, 512));
  for (int number = 3; number < 512; ++number) ::close(number);
  for (size_t i = 0; i < high.size(); ++i) {
    if (::dup2(high[i], request.header.files[i]) < 0) fail("dup2");
    ::close(high[i]);
  }
  ::umask(request.header.umask);
  ::sigprocmask(SIG_SETMASK, &mask, nullptr);
  environ = variables.data();
  std::exit(program_main(static_cast<int>(request.header.num_arguments), argv.data(), environ));
}

class Server {
 public:
  explicit Server(char** environment) : own_(load_environment(environment)) {
    ::sigprocmask(SIG_SETMASK, nullptr, &mask_);
    sigset_t ended;
    ::sigemptyset(&ended);
    ::sigaddset(&ended, SIGCHLD);
    ::sigprocmask(SIG_BLOCK, &ended, nullptr);
    ended_ = ::signalfd(-1, &ended, SFD_CLOEXEC);
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::string path = "/tmp/prepared.XXXXXX";
    if (::mkdtemp(path.data()) == nullptr) fail("mkdtemp");
    folder_ = path;
    path_ = path + "/s";
    std::strncpy(address.sun_path, path_.c_str(), sizeof address.sun_path - 1);
    listener_ = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (::bind(listener_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
        ::listen(listener_, 64) != 0)
      fail("socket");
  }
  ~Server() {
    ::unlink(path_.c_str());
    ::rmdir(folder_.c_str());
  }

  void start(char** command) {
    command_ = ::fork();
    if (command_ != 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL); // ctest kills the first process alone
    ::sigprocmask(SIG_SETMASK, &mask_, nullptr);
    ::setenv(kVariable, path_.c_str(), 1);
    ::execvp(command[0], command);
    fail(command[0]);
  }

  int forks() const { return forks_; }
  int refused() const { return refused_; }

  /// Until the command ends; its status.
  int run() {
    while (true) {
      std::vector<pollfd> events = {{listener_, POLLIN, 0}, {ended_, POLLIN, 0}};
      for (const Client& client : clients_) events.push_back({client.socket, POLLIN, 0});
      if (::poll(events.data(), events.size(), -1) < 0) continue;
      for (size_t i = 2; i < events.size(); ++i)
        if (events[i].revents != 0) forward(clients_[i - 2]);
      if (events[1].revents != 0 && collect()) return status_;
      if (events[0].revents != 0) accept_one();
      std::erase_if(clients_, [](const Client& client) { return client.socket < 0; });
    }
  }

 private:
  /// A signal of a client, or its end.
  static void forward(Client& client) {
    char number = 0;
    const ssize_t n = ::recv(client.socket, &number, 1, MSG_DONTWAIT);
    if (n == 1) {
      ::kill(client.child, number);
    } else if (n == 0) { // killed
      ::kill(client.child, SIGKILL);
      ::close(client.socket);
      client.socket = -1;
    }
  }

  /// Takes leave of the children that have ended; whether the command has.
  bool collect() {
    signalfd_siginfo info = {};
    [[maybe_unused]] const ssize_t n = ::read(ended_, &info, sizeof info);
    int status = 0;
    for (pid_t child = 0; (child = ::waitpid(-1, &status, WNOHANG)) > 0;) {
      if (child == command_) {
        status_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        return true;
      }
      for (Client& client : clients_) {
        if (client.child != child || client.socket < 0) continue;
        const int32_t answer = status;
        send_all(client.socket, reinterpret_cast<const char*>(&answer), sizeof answer);
        ::close(client.socket);
        client.socket = -1;
      }
    }
    return false;
  }

  void accept_one() {
    Client client{.socket = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC)};
    Request request;
    if (client.socket < 0 || !receive(client.socket, request)) {
      for (const int file : request.files) ::close(file);
      ::close(client.socket);
      return;
    }
    std::vector<char*> argv, variables;
    char* at = request.text.data();
    const auto take = [&](uint32_t count, std::vector<char*>& out) {
      for (uint32_t i = 0; i < count; ++i, at += std::strlen(at) + 1) out.push_back(at);
      out.push_back(nullptr);
    };
    take(request.header.num_arguments, argv);
    take(request.header.num_variables, variables);
    if (starts_alike(request.header, variables.data(), own_)) {
      client.child = ::fork();
      if (client.child == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL); // nobody would forward signals
        run_program(request, argv, variables, mask_);
      }
    }
    for (const int file : request.files) ::close(file);
    if (client.child > 0) {
      clients_.push_back(client);
      ++forks_;
      return;
    }
    ++refused_;
    const int32_t answer = kRefused;
    send_all(client.socket, reinterpret_cast<const char*>(&answer), sizeof answer);
    ::close(client.socket);
  }

  std::string own_, folder_, path_;
  sigset_t mask_ = {};
  int listener_ = -1, ended_ = -1, status_ = 0, forks_ = 0, refused_ = 0;
  pid_t command_ = -1;
  std::vector<Client> clients_;
};

int serve(int argc, char** argv, char**) {
  ::unsetenv("LD_PRELOAD");
  if (argc < 2) {
    std::fprintf(stderr, "LD_PRELOAD=libprepared_program.so pentatron-torch TEST [ARGUMENT...]\n");
    return 125;
  }
  Server server(environ);
  server.start(argv + 1);
  const int status = server.run();
  std::printf("the program was started %d times as a fork, %d times anew\n", server.forks(),
              server.refused());
  return status;
}

} // namespace

extern "C" int __libc_start_main(Main main, int argc, char** argv, void (*init)(), void (*fini)(),
                                 void (*loader_fini)(), void* stack) {
  using Start = int (*)(Main, int, char**, void (*)(), void (*)(), void (*)(), void*);
  const auto start = reinterpret_cast<Start>(::dlsym(RTLD_NEXT, "__libc_start_main"));
  program_main = main;
  return start(serve, argc, argv, init, fini, loader_fini, stack);
}
