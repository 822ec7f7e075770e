// The handler of SIGBUS for failed reads of mapped files.

#include "mappings.h"

#include <redco/error.h>
#include <redco/mapped_files.h>

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <mutex>

namespace redco {

std::atomic<bool> mapped_file_failed = false;

namespace {

// A list that only grows, since the handler reads it without a lock. New mappings reuse the entries
// of removed ones.
struct Mapping {
  std::atomic<uintptr_t> begin = 0;  ///< 0: free
  uintptr_t end = 0;
  std::string path;
  Mapping* next = nullptr;
};

std::mutex mutex;
std::atomic<Mapping*> first = nullptr;
struct sigaction before {};
uintptr_t page_size = 4096;

// The path of the first file that failed since the last check.
char failed_path[4096];
std::atomic<bool> has_failed_path = false;
static_assert(std::atomic<bool>::is_always_lock_free, "set inside a signal handler");

const Mapping* mapping_of(uintptr_t address) {
  for (const Mapping* each = first; each != nullptr; each = each->next)
    if (uintptr_t begin = each->begin; begin != 0 && begin <= address && address < each->end)
      return each;
  return nullptr;
}

void on_bus_error(int, siginfo_t* info, void*) {
  int error = errno;
  auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  const Mapping* mapping = info->si_code > 0 ? mapping_of(address) : nullptr;
  void* page = reinterpret_cast<void*>(address / page_size * page_size);
  if (mapping == nullptr || mmap(page, page_size, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED) {
    // The read is repeated and raises the signal for the previous handler.
    sigaction(SIGBUS, &before, nullptr);
    if (info->si_code <= 0) raise(SIGBUS);
  } else {
    if (!has_failed_path.exchange(true))
      std::strncpy(failed_path, mapping->path.c_str(), sizeof(failed_path) - 1);
    mapped_file_failed = true;
  }
  errno = error;
}

}  // namespace

namespace io {

void add_mapping(const void* begin, size_t size, const std::string& path) {
  std::lock_guard guard(mutex);
  Mapping* free = first;
  while (free != nullptr && free->begin != 0) free = free->next;
  bool is_new = free == nullptr;
  if (is_new) free = new Mapping;  // NOLINT: never freed, for the handler
  auto address = reinterpret_cast<uintptr_t>(begin);
  free->path = path;
  free->end = address + size;
  free->begin = address;
  if (!is_new) return;
  free->next = first;
  first = free;
}

void remove_mapping(const void* begin) {
  std::lock_guard guard(mutex);
  for (Mapping* each = first; each != nullptr; each = each->next)
    if (each->begin == reinterpret_cast<uintptr_t>(begin)) each->begin = 0;
}

}  // namespace io

void guard_mapped_files() {
  std::lock_guard guard(mutex);
  page_size = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  struct sigaction action {};
  sigaction(SIGBUS, nullptr, &action);
  if ((action.sa_flags & SA_SIGINFO) != 0 && action.sa_sigaction == on_bus_error) return;
  before = action;
  action = {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigaction(SIGBUS, &action, nullptr);
}

void fail_for_mapped_file() {
  std::string path;
  {
    std::lock_guard guard(mutex);
    mapped_file_failed = false;
    path = failed_path;
    has_failed_path = false;
  }
  fail(path,
       ": the file was shortened after it was opened, or its disk fails: tensors from it have "
       "lost values. Load it again; to replace a file that is in use, write a new one and "
       "rename it");
}

}  // namespace redco
