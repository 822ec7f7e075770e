// The library redco_cuda with a group of one rank, which the engine never makes: that it loads and
// connects, that collectives keep the order of the stream, and that no memory stays. Exits with 77
// where there is no GPU.
#include "../../engine/mesh/nccl.h"

#include <redco/detail/cuda.h>
#include <redco/error.h>

#include <ATen/ATen.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <cstdio>
#include <vector>

namespace {

bool all_good = true;

void check(const char* what, bool good) {
  std::printf("%s %s\n", good ? "ok    " : "not ok", what);
  all_good &= good;
}

int64_t allocated() {
  return c10::getDeviceAllocator(c10::kCUDA)->getDeviceStats(0).allocated_bytes[0].current;
}

void check_collectives(c10d::Backend& group, const at::TensorOptions& on_gpu) {
  at::Tensor x = at::arange(1024, on_gpu), kept = x.clone(), out = at::zeros_like(x);
  std::vector<at::Tensor> list{x};
  group.allreduce(list)->wait();
  check("all-reduce", at::equal(x, kept));
  group._allgather_base(out, x)->wait();
  check("all-gather", at::equal(out, kept));
  group._reduce_scatter_base(out.zero_(), x)->wait();
  check("reduce-scatter", at::equal(out, kept));
  std::vector<int64_t> equal_parts;
  group.alltoall_base(out.zero_(), x, equal_parts, equal_parts)->wait();
  check("all-to-all", at::equal(out, kept));
}

// A collective sees what was issued before it, what comes after sees its result, and its input may
// go at once, though others take its memory.
void check_order(c10d::Backend& group, const at::TensorOptions& on_gpu) {
  at::Tensor a = at::randn({1024, 1024}, on_gpu);
  bool good = true;
  for (int i = 0; i < 200; ++i) {
    at::Tensor product = a.mm(a), sum = product.clone(), gathered = at::empty_like(product);
    std::vector<at::Tensor> list{sum};
    auto reducing = group.allreduce(list);
    auto gathering = group._allgather_base(gathered, product);
    product.reset();
    for (int k = 0; k < 4; ++k) at::full({1024, 1024}, k, on_gpu);
    reducing->wait();
    gathering->wait();
    if (i % 20 == 0) good &= at::equal(sum, gathered) && at::equal(sum, a.mm(a));
  }
  check("200 collectives between products", good);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    redco::load_cuda();
  } catch (const redco::Error& error) {
    std::printf("skipped: %s\n", error.what());
    return 77;
  }
  c10::Device device(c10::kCUDA, 0);
  redco::mesh::Backend backend;
  void* library = dlopen(argc > 1 ? argv[1] : "libredco_cuda.so", RTLD_NOW);
  if (library == nullptr) {
    std::printf("not ok %s\n", dlerror());
    return 1;
  }
  auto connect = reinterpret_cast<redco::mesh::NcclEntry>(dlsym(library, redco::mesh::nccl_entry));
  connect({c10::make_intrusive<c10d::HashStore>(), 0, 1, std::chrono::seconds(60), device},
          backend);
  check("its work is queued on the stream", backend.runs_on_stream);
  at::NoGradGuard no_grad;
  auto on_gpu = at::device(device).dtype(at::kFloat);
  check_collectives(*backend.c10d, on_gpu);
  at::ones({2, 2}, on_gpu).mm(at::ones({2, 2}, on_gpu));  // takes cuBLAS's workspace
  int64_t before = allocated();
  check_order(*backend.c10d, on_gpu);
  c10::impl::VirtualGuardImpl(c10::kCUDA).synchronizeDevice(0);
  check("nothing stays allocated", allocated() <= before + (1 << 20));
  backend.c10d->shutdown();
  return all_good ? 0 : 1;
}
