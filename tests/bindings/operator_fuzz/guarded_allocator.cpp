#include "guarded_allocator.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unordered_map>

namespace redco::testing {

namespace {

constexpr size_t page = 4096;
constexpr size_t alignment = 16;
constexpr size_t most = size_t{256} << 20;
constexpr unsigned char filler = 0xA5;

struct Block {
  char* mapping;
  size_t mapped;
  unsigned char* slack;
  size_t n_slack;
};

// By address: LibTorch also frees memory by nothing but that.
std::unordered_map<void*, Block>& blocks() {
  static auto* all = new std::unordered_map<void*, Block>;
  return *all;
}

void release(void* data) {
  auto found = blocks().find(data);
  if (found == blocks().end()) return;
  const Block& block = found->second;
  for (size_t i = 0; i < block.n_slack; ++i) {
    if (block.slack[i] == filler) continue;
    std::fprintf(stderr, "written %zu bytes past the end of a tensor\n", i);
    std::abort();
  }
  munmap(block.mapping, block.mapped);
  blocks().erase(found);
}

class GuardedAllocator : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t n) override {
    if (n == 0) return {nullptr, c10::Device(c10::kCPU)};
    TORCH_CHECK_WITH(OutOfMemoryError, n <= most, "not enough memory for ", n, " bytes");
    size_t inner = (n + page - 1) / page * page;
    size_t mapped = inner + 2 * page;
    void* mapping =
        mmap(nullptr, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    TORCH_CHECK_WITH(OutOfMemoryError, mapping != MAP_FAILED, "not enough memory for ", n,
                     " bytes");
    auto* start = static_cast<char*>(mapping);
    mprotect(start + page, inner, PROT_READ | PROT_WRITE);
    char* data = start + page + (inner - n) / alignment * alignment;
    auto* slack = reinterpret_cast<unsigned char*>(data + n);
    size_t n_slack = size_t(start + page + inner - (data + n));
    std::memset(slack, filler, n_slack);
    // What was never written is no small number either.
    if (n <= size_t{1} << 20) std::memset(data, 0x5B, n);
    blocks()[data] = {start, mapped, slack, n_slack};
    return {data, data, release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return release; }
  void copy_data(void* to, const void* from, size_t n) const override { std::memcpy(to, from, n); }
};

}  // namespace

void guard_allocations() {
  static GuardedAllocator allocator;
  c10::SetCPUAllocator(&allocator, /*priority=*/255);
}

}  // namespace redco::testing
