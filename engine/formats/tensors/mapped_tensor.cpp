// Tensors in mapped files.

#include "mapped_tensor.h"

#include <ATen/ops/from_blob.h>
#include <c10/core/ScalarType.h>
#include <c10/util/accumulate.h>

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <mutex>
#include <unordered_map>

namespace redco::io {

namespace {

// Drops the pages that are wholly in a range. Other pages may have bytes of other tensors.
void drop_pages(void* begin, size_t size) {
  const auto page = uintptr_t(sysconf(_SC_PAGESIZE)), address = reinterpret_cast<uintptr_t>(begin);
  const uintptr_t first = (address + page - 1) / page * page, last = (address + size) / page * page;
  if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

// The state that tensors with one `begin` share. Never deleted: tensors may outlive static objects.
struct Regions {
  std::mutex mutex;
  std::unordered_map<const void*, std::weak_ptr<void>> by_begin;
};
Regions& regions = *new Regions;

void release(void* begin, size_t size) {
  std::lock_guard lock(regions.mutex);
  auto found = regions.by_begin.find(begin);
  // Another thread may have asked for the same tensor meanwhile.
  if (found == regions.by_begin.end() || !found->second.expired()) return;
  regions.by_begin.erase(found);
  drop_pages(begin, size);
}

std::shared_ptr<void> region_of(const std::shared_ptr<std::byte>& mapping, std::byte* begin,
                                size_t size) {
  std::lock_guard lock(regions.mutex);
  std::weak_ptr<void>& known = regions.by_begin[begin];
  if (std::shared_ptr<void> region = known.lock()) return region;
  std::shared_ptr<void> region(begin, [mapping, size](void* start) { release(start, size); });
  known = region;
  return region;
}

}  // namespace

at::Tensor mapped_tensor(const std::shared_ptr<std::byte>& mapping, std::byte* begin,
                         at::IntArrayRef sizes, at::ScalarType dtype) {
  const size_t size = size_t(c10::multiply_integers(sizes)) * c10::elementSize(dtype);
  return at::from_blob(
      begin, sizes, [region = region_of(mapping, begin, size)](void*) {}, at::TensorOptions(dtype));
}

}  // namespace redco::io
