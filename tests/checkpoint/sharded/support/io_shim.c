/* Preloaded into a program: counts its calls that change files below a folder, and at a chosen one
 * ends the process or lets the call fail.
 *
 *   IO_SHIM_ROOT   the folder; calls on other files pass through uncounted
 *   IO_SHIM_AT     number of the call to meet, from 1 on; without it all pass
 *   IO_SHIM_MODE   kill (before the call), killafter, torn (half a write, then kill), enospc, eio,
 *                  short (half a write, which is allowed), slow (all from that call on take 20 ms)
 *   IO_SHIM_LOG    a file that gets a record for every call that succeeded:
 *                  "OP A B C LENGTH\n", then LENGTH bytes of data. Paths are relative to the root,
 *                  files are named by inode, so that a script can replay what was durable when.
 *
 * For programs that use the calls below, with IO_SHIM_LOG those of one thread; a write to standard
 * output is logged as "mark", so that the program can say what it has promised so far. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>


static const char* root_;
static size_t root_size_;
static long at_;
static _Atomic long calls_; /* of all threads */
static const char* mode_;
static int log_ = -1;

__attribute__((constructor)) static void start(void) {
  root_ = getenv("IO_SHIM_ROOT");
  if (root_ == NULL) return;
  root_size_ = strlen(root_);
  at_ = getenv("IO_SHIM_AT") != NULL ? atol(getenv("IO_SHIM_AT")) : 0;
  mode_ = getenv("IO_SHIM_MODE") != NULL ? getenv("IO_SHIM_MODE") : "kill";
  const char* log = getenv("IO_SHIM_LOG");
  if (log != NULL)
    log_ = (int)syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
}

static void record(const char* op, const char* a, const char* b, const char* c, const void* data,
                   size_t size) {
  if (log_ < 0) return;
  char line[8192];
  const int n = snprintf(line, sizeof line, "%s\t%s\t%s\t%s\t%zu\n", op, a, b, c, size);
  if (syscall(SYS_write, log_, line, (size_t)n) != n ||
      (size > 0 && syscall(SYS_write, log_, data, size) != (long)size))
    abort();
}

/* The part of the path after the root, or NULL if it is elsewhere. */
static const char* below_root(int folder, const char* path, char* buffer, size_t size) {
  if (root_ == NULL || path == NULL) return NULL;
  if (path[0] != '/' && folder != AT_FDCWD) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
    const ssize_t n = readlink(link, buffer, size - 1);
    if (n < 0) return NULL;
    snprintf(buffer + n, size - (size_t)n, "/%s", path);
  } else {
    snprintf(buffer, size, "%s", path);
  }
  if (strncmp(buffer, root_, root_size_) != 0) return NULL;
  if (buffer[root_size_] == '\0') return ".";
  return buffer[root_size_] == '/' ? buffer + root_size_ + 1 : NULL;
}

static int is_below_root(int file) {
  char link[64], buffer[4096];
  if (root_ == NULL) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  const ssize_t n = readlink(link, buffer, sizeof buffer - 1);
  if (n < 0) return 0;
  buffer[n] = '\0';
  return strncmp(buffer, root_, root_size_) == 0 &&
         (buffer[root_size_] == '/' || buffer[root_size_] == '\0');
}

static const char* inode(int file, char* buffer, size_t size) {
  struct stat status;
  memset(&status, 0, sizeof status);
  if (fstat(file, &status) != 0) abort();
  snprintf(buffer, size, "%lu", (unsigned long)status.st_ino);
  return buffer;
}

enum { PASS, KILL_AFTER, HALF, HALF_KILL, FAIL };

static void end(void) {
  kill(getpid(), SIGKILL);
}

static int meet(void) {
  const long call = ++calls_;
  if (strcmp(mode_, "slow") == 0) {
    if (call >= at_) usleep(20000);
    return PASS;
  }
  if (call != at_) return PASS;
  if (strcmp(mode_, "kill") == 0) end();
  if (strcmp(mode_, "killafter") == 0) return KILL_AFTER;
  if (strcmp(mode_, "torn") == 0) return HALF_KILL;
  if (strcmp(mode_, "short") == 0) return HALF;
  errno = strcmp(mode_, "eio") == 0 ? EIO : ENOSPC;
  return FAIL;
}

/* How many calls there were, for the script that chooses which one to meet. */
__attribute__((destructor)) static void finish(void) {
  const char* file = getenv("IO_SHIM_COUNT");
  if (root_ == NULL || file == NULL) return;
  FILE* out = fopen(file, "w");
  if (out == NULL) return;
  fprintf(out, "%ld\n", calls_);
  fclose(out);
}

/* The program ends so, without destructors of libraries. */
__attribute__((noreturn)) void _exit(int status) {
  finish();
  syscall(SYS_exit_group, status);
  __builtin_unreachable();
}

/* A call that is counted: on FAIL it returns -1, and after it the process may end. */
#define COUNTED(result_type, call, log_it)                                                         \
  const int fate = meet();                                                                         \
  if (fate == FAIL) return -1;                                                                     \
  const result_type result = (call);                                                               \
  const int error = errno;                                                                         \
  if (result >= 0) {                                                                               \
    log_it;                                                                                        \
  }                                                                                                \
  if (fate == KILL_AFTER || fate == HALF_KILL) end();                                              \
  errno = error;                                                                                   \
  return result

static int open_any(int folder, const char* path, int flags, mode_t mode) {
  char buffer[4096], id[32];
  const char* name = below_root(folder, path, buffer, sizeof buffer);
  if (name == NULL || (flags & O_CREAT) == 0)
    return (int)syscall(SYS_openat, folder, path, flags, mode);
  COUNTED(int, (int)syscall(SYS_openat, folder, path, flags, mode),
          record("create", name, inode(result, id, sizeof id), "", NULL, 0));
}

static mode_t mode_of(int flags, va_list list) {
  return (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(list, mode_t) : 0;
}

#define OPEN(name)                                                                                 \
  int name(const char* path, int flags, ...) {                                                     \
    va_list list;                                                                                  \
    va_start(list, flags);                                                                         \
    const mode_t mode = mode_of(flags, list);                                                      \
    va_end(list);                                                                                  \
    return open_any(AT_FDCWD, path, flags, mode);                                                  \
  }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                                                               \
  int name(int folder, const char* path, int flags, ...) {                                         \
    va_list list;                                                                                  \
    va_start(list, flags);                                                                         \
    const mode_t mode = mode_of(flags, list);                                                      \
    va_end(list);                                                                                  \
    return open_any(folder, path, flags, mode);                                                    \
  }
OPENAT(openat)
OPENAT(openat64)

ssize_t write(int file, const void* data, size_t size) {
  char id[32], at[32];
  if (root_ != NULL && file == 1) record("mark", "", "", "", data, size);
  if (!is_below_root(file)) return syscall(SYS_write, file, data, size);
  snprintf(at, sizeof at, "%ld", (long)lseek(file, 0, SEEK_CUR));
  const int fate = meet();
  if (fate == FAIL) return -1;
  if ((fate == HALF || fate == HALF_KILL) && size > 1) size /= 2;
  const ssize_t result = syscall(SYS_write, file, data, size);
  if (result > 0) record("write", inode(file, id, sizeof id), at, "", data, (size_t)result);
  if (fate == KILL_AFTER || fate == HALF_KILL) end();
  return result;
}

static ssize_t pwrite_any(int file, const void* data, size_t size, off_t offset) {
  char id[32], at[32];
  if (!is_below_root(file)) return syscall(SYS_pwrite64, file, data, size, offset);
  snprintf(at, sizeof at, "%ld", (long)offset);
  const int fate = meet();
  if (fate == FAIL) return -1;
  if ((fate == HALF || fate == HALF_KILL) && size > 1) size /= 2;
  const ssize_t result = syscall(SYS_pwrite64, file, data, size, offset);
  if (result > 0) record("write", inode(file, id, sizeof id), at, "", data, (size_t)result);
  if (fate == KILL_AFTER || fate == HALF_KILL) end();
  return result;
}
ssize_t pwrite(int file, const void* data, size_t size, off_t offset) {
  return pwrite_any(file, data, size, offset);
}
ssize_t pwrite64(int file, const void* data, size_t size, off_t offset) {
  return pwrite_any(file, data, size, offset);
}

static int truncate_any(int file, off_t size) {
  char id[32], length[32];
  if (!is_below_root(file)) return (int)syscall(SYS_ftruncate, file, size);
  snprintf(length, sizeof length, "%ld", (long)size);
  COUNTED(int, (int)syscall(SYS_ftruncate, file, size),
          record("resize", inode(file, id, sizeof id), length, "", NULL, 0));
}
int ftruncate(int file, off_t size) { return truncate_any(file, size); }
int ftruncate64(int file, off_t size) { return truncate_any(file, size); }

static int allocate_any(int file, int flags, off_t offset, off_t size) {
  char id[32], length[32];
  if (!is_below_root(file)) return (int)syscall(SYS_fallocate, file, flags, offset, size);
  snprintf(length, sizeof length, "%ld", (long)(offset + size));
  COUNTED(int, (int)syscall(SYS_fallocate, file, flags, offset, size),
          record("grow", inode(file, id, sizeof id), length, "", NULL, 0));
}
int fallocate(int file, int flags, off_t offset, off_t size) {
  return allocate_any(file, flags, offset, size);
}
int fallocate64(int file, int flags, off_t offset, off_t size) {
  return allocate_any(file, flags, offset, size);
}

static int sync_any(int file, long call) {
  char id[32];
  if (!is_below_root(file)) return (int)syscall(call, file);
  COUNTED(int, (int)syscall(call, file),
          record("sync", inode(file, id, sizeof id), "", "", NULL, 0));
}
int fsync(int file) { return sync_any(file, SYS_fsync); }
int fdatasync(int file) { return sync_any(file, SYS_fdatasync); }

static int make_folder(int folder, const char* path, mode_t mode) {
  char buffer[4096], id[32];
  struct stat status;
  const char* name = below_root(folder, path, buffer, sizeof buffer);
  if (name == NULL) return (int)syscall(SYS_mkdirat, folder, path, mode);
  COUNTED(int, (int)syscall(SYS_mkdirat, folder, path, mode),
          if (fstatat(folder, path, &status, 0) == 0) {
            snprintf(id, sizeof id, "%lu", (unsigned long)status.st_ino);
            record("mkdir", name, id, "", NULL, 0);
          });
}
int mkdir(const char* path, mode_t mode) { return make_folder(AT_FDCWD, path, mode); }
int mkdirat(int folder, const char* path, mode_t mode) { return make_folder(folder, path, mode); }

static int remove_any(int folder, const char* path, int flags) {
  char buffer[4096];
  const char* name = below_root(folder, path, buffer, sizeof buffer);
  if (name == NULL) return (int)syscall(SYS_unlinkat, folder, path, flags);
  COUNTED(int, (int)syscall(SYS_unlinkat, folder, path, flags),
          record("remove", name, "", "", NULL, 0));
}
int unlink(const char* path) { return remove_any(AT_FDCWD, path, 0); }
int rmdir(const char* path) { return remove_any(AT_FDCWD, path, AT_REMOVEDIR); }
int unlinkat(int folder, const char* path, int flags) { return remove_any(folder, path, flags); }
int remove(const char* path) {
  struct stat status;
  return remove_any(AT_FDCWD, path,
                    lstat(path, &status) == 0 && S_ISDIR(status.st_mode) ? AT_REMOVEDIR : 0);
}

static int rename_any(int from, const char* old, int to, const char* fresh, unsigned flags) {
  char a[4096], b[4096], text[16];
  const char* old_name = below_root(from, old, a, sizeof a);
  const char* new_name = below_root(to, fresh, b, sizeof b);
  if (old_name == NULL || new_name == NULL)
    return (int)syscall(SYS_renameat2, from, old, to, fresh, flags);
  snprintf(text, sizeof text, "%u", flags);
  COUNTED(int, (int)syscall(SYS_renameat2, from, old, to, fresh, flags),
          record("rename", old_name, new_name, text, NULL, 0));
}
int rename(const char* old, const char* fresh) {
  return rename_any(AT_FDCWD, old, AT_FDCWD, fresh, 0);
}
int renameat(int from, const char* old, int to, const char* fresh) {
  return rename_any(from, old, to, fresh, 0);
}
int renameat2(int from, const char* old, int to, const char* fresh, unsigned flags) {
  return rename_any(from, old, to, fresh, flags);
}
