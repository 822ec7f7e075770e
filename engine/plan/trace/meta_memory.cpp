// A counting allocator for the device meta: its blocks have a size and an end, but no memory.

#include "tracer.h"

#include <c10/core/Allocator.h>

#include <memory>

namespace redco::plan {

namespace {

struct Block {
  uint64_t tracer;
  int64_t number;
};

void end_block(void* context) {
  std::unique_ptr<Block> block(static_cast<Block*>(context));
  // A block that ends on another thread, or after its tracer, no longer counts.
  Tracer* tracer = Tracer::of_thread();
  if (tracer && tracer->number() == block->tracer) tracer->freed(block->number);
}

void end_nothing(void*) {}

class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device device(c10::DeviceType::Meta);
    Tracer* tracer = bytes > 0 ? Tracer::current() : nullptr;
    if (tracer == nullptr) return {nullptr, nullptr, &end_nothing, device};
    auto* block = new Block{tracer->number(), tracer->allocated(int64_t(bytes))};
    return {nullptr, block, &end_block, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &end_nothing; }
  void copy_data(void*, const void*, size_t) const override {}
};

}  // namespace

void count_meta_memory() {
  static CountingAllocator allocator;
  [[maybe_unused]] static const bool is_set = [] {
    constexpr uint8_t above_libtorch = 200;
    c10::SetAllocator(c10::kMeta, &allocator, above_libtorch);
    return true;
  }();
}

int64_t block_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage() || !tensor.is_meta()) return -1;
  const c10::DataPtr& data = tensor.storage().data_ptr();
  if (data.get_deleter() != &end_block) return -1;
  return static_cast<const Block*>(data.get_context())->number;
}

}  // namespace redco::plan
