#include "confine.h"

#include "host/sandbox_channel.h"

#include <redco/detail/last_error.h>
#include <redco/error.h>

#include <seccomp.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <vector>

namespace redco::sandbox {

namespace {

void limit(int resource, rlim_t most) {
  rlimit limit{};
  getrlimit(resource, &limit);  // it may be lower already
  limit.rlim_cur = limit.rlim_max = std::min(most, limit.rlim_max);
  require(setrlimit(resource, &limit) == 0, "setrlimit: ", LastError{});
}

void limit_resources(size_t memory_bytes) {
  size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  require(pages > 0, "cannot read /proc/self/statm");
  size_t used = pages * size_t(sysconf(_SC_PAGESIZE));
  limit(RLIMIT_AS, used + std::min(memory_bytes, RLIM_INFINITY - used));
  for (int resource : {RLIMIT_CORE, RLIMIT_FSIZE, RLIMIT_NOFILE, RLIMIT_NPROC}) limit(resource, 0);
}

// The kernel ends the process at any other system call. Memory may become executable: oneDNN
// compiles kernels.
void forbid_system_calls() {
  scmp_filter_ctx filter = seccomp_init(SCMP_ACT_KILL_PROCESS);
  require(filter != nullptr, "seccomp_init failed");
  auto allow = [&](int call, const std::vector<scmp_arg_cmp>& arguments = {}) {
    int code = seccomp_rule_add_array(filter, SCMP_ACT_ALLOW, call, unsigned(arguments.size()),
                                      arguments.data());
    require(code == 0, "seccomp_rule_add: ", std::strerror(-code));
  };
  for (int call :
       {SCMP_SYS(brk), SCMP_SYS(mmap), SCMP_SYS(munmap), SCMP_SYS(mremap), SCMP_SYS(mprotect),
        SCMP_SYS(madvise), SCMP_SYS(clock_gettime), SCMP_SYS(clock_getres), SCMP_SYS(gettimeofday),
        SCMP_SYS(getrandom), SCMP_SYS(getcpu), SCMP_SYS(sched_getaffinity), SCMP_SYS(sched_yield),
        SCMP_SYS(getpid), SCMP_SYS(gettid), SCMP_SYS(exit), SCMP_SYS(exit_group)})
    allow(call);
  allow(SCMP_SYS(sendto), {SCMP_A0(SCMP_CMP_EQ, socket_fd)});
  allow(SCMP_SYS(recvfrom), {SCMP_A0(SCMP_CMP_EQ, socket_fd)});
  allow(SCMP_SYS(futex), {SCMP_A1(SCMP_CMP_MASKED_EQ, 0x7f, 1)});  // FUTEX_WAKE, of no other thread
  // The calls of abort, so that the program sees SIGABRT. Standard error is /dev/null.
  allow(SCMP_SYS(write), {SCMP_A0(SCMP_CMP_EQ, STDERR_FILENO)});
  allow(SCMP_SYS(writev), {SCMP_A0(SCMP_CMP_EQ, STDERR_FILENO)});
  allow(SCMP_SYS(rt_sigprocmask), {SCMP_A0(SCMP_CMP_EQ, SIG_UNBLOCK)});
  allow(SCMP_SYS(tgkill), {SCMP_A0(SCMP_CMP_EQ, scmp_datum_t(getpid()))});
  int code = seccomp_load(filter);
  require(code == 0, "this system cannot forbid system calls (seccomp): ", std::strerror(-code));
  seccomp_release(filter);
}

}  // namespace

void confine(size_t memory_bytes) {
  limit_resources(memory_bytes);
  forbid_system_calls();
}

}  // namespace redco::sandbox
