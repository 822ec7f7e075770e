#include "../../engine/core/best_fit_heap.h"
#include "../../engine/core/paged_heap.h"

#include <redco/detail/free_memory.h>
#include <redco/error.h>
#include <redco/tensor_heap.h>

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <random>
#include <set>
#include <thread>
#include <vector>

using redco::BestFitHeap;
using redco::PagedHeap;

namespace {

constexpr int64_t kib = 1024, mib = 1024 * kib;

// Bytes of this process in memory.
int64_t resident() {
  std::ifstream file("/proc/self/statm");
  int64_t size = 0, pages = 0;
  file >> size >> pages;
  return pages * sysconf(_SC_PAGESIZE);
}

struct UsesHeap {
  UsesHeap() { redco::use_tensor_heap(); }
};

}  // namespace

TEST_CASE("a block takes the smallest free range that fits, of several the lowest") {
  BestFitHeap heap(64);
  std::vector<int64_t> sizes = {256, 64, 128, 64, 192, 64, 128, 64}, places;
  for (int64_t size : sizes) places.push_back(heap.allocate(size));
  CHECK(places == std::vector<int64_t>{0, 256, 320, 448, 512, 704, 768, 896});
  for (int i : {0, 2, 4, 6}) heap.release(places[size_t(i)]);
  CHECK(heap.growth_for(100) == 0);
  CHECK(heap.allocate(100) == 320);
  CHECK(heap.allocate(128) == 768);
  CHECK(heap.allocate(1) == 512);
  CHECK(heap.allocate(65) == 576);
  CHECK(heap.free_ranges() == std::map<int64_t, int64_t>{{0, 256}});
  CHECK(heap.in_use() == heap.size() - 256);
}

TEST_CASE("free neighbours merge, and the heap grows by what its end lacks") {
  BestFitHeap heap(64);
  int64_t a = heap.allocate(64), b = heap.allocate(64), c = heap.allocate(64);
  CHECK(heap.growth_for(64) == 64);
  heap.release(a);
  heap.release(c);
  CHECK(heap.growth_for(128) == 64);
  CHECK(heap.allocate(128) == c);
  CHECK(heap.size() == 256);
  heap.release(c);
  heap.release(b);
  CHECK(heap.free_ranges() == std::map<int64_t, int64_t>{{0, 256}});
  CHECK(heap.growth_for(320) == 64);
  CHECK(heap.allocate(320) == 0);
  CHECK(heap.in_use() == 320);
  CHECK_THROWS_WITH_AS(heap.release(64), "no block of the heap is at 64", redco::Error);
}

TEST_CASE("random blocks never overlap") {
  BestFitHeap heap(64);
  std::mt19937 random(1);
  std::map<int64_t, int64_t> blocks;
  for (int i = 0; i < 20000; ++i) {
    if (blocks.size() > 100 || (!blocks.empty() && random() % 2 == 0)) {
      auto block = std::next(blocks.begin(), int64_t(random() % blocks.size()));
      heap.release(block->first);
      blocks.erase(block);
    } else {
      int64_t bytes = 1 + int64_t(random() % 5000), before = heap.size();
      int64_t growth = heap.growth_for(bytes), address = heap.allocate(bytes);
      CHECK(heap.size() == before + growth);
      auto after = blocks.upper_bound(address);
      if (after != blocks.end()) REQUIRE(address + bytes <= after->first);
      if (after != blocks.begin())
        REQUIRE(std::prev(after)->first + std::prev(after)->second <= address);
      blocks[address] = bytes;
    }
  }
}

TEST_CASE("free pages return their memory before a block gets pages without memory") {
  constexpr int64_t page = PagedHeap::page_bytes;
  PagedHeap heap;
  int64_t first = heap.allocate(4 * page).address;
  CHECK(heap.allocate(page).address == 4 * page);
  heap.release(first);
  CHECK(heap.allocate(3 * page).returned.empty());
  CHECK(heap.most_bytes() == 5 * page);
  PagedHeap::Block block = heap.allocate(2 * page);  // page 3 is too small for it
  CHECK(block.address == 5 * page);
  CHECK(block.returned == std::vector<int64_t>{3});
  CHECK(heap.most_bytes() == 6 * page);
  heap.release(block.address);
  heap.return_free_pages();
  CHECK(heap.most_bytes() == 4 * page);
  CHECK(heap.allocate(page).address == 3 * page);
  CHECK(heap.most_bytes() == 5 * page);
}

TEST_CASE("no page of a block loses its memory, and only so many pages have memory at once") {
  PagedHeap heap;
  std::mt19937 random(1);
  std::map<int64_t, int64_t> blocks;  // address, bytes
  std::set<int64_t> with_memory;
  size_t n_returned = 0, most_in_use = 0;
  auto pages_of = [](int64_t address, int64_t bytes) {
    std::set<int64_t> pages;
    for (int64_t page = address / PagedHeap::page_bytes;
         page <= (address + bytes - 1) / PagedHeap::page_bytes; ++page)
      pages.insert(page);
    return pages;
  };
  for (int i = 0; i < 5000; ++i) {
    if (blocks.size() > 50 || (!blocks.empty() && random() % 2 == 0)) {
      auto block = std::next(blocks.begin(), int64_t(random() % blocks.size()));
      heap.release(block->first);
      blocks.erase(block);
      continue;
    }
    int64_t bytes = int64_t{1} << random() % 26;
    bytes += int64_t(random()) % bytes;
    std::set<int64_t> in_use;
    for (auto [address, size] : blocks) in_use.merge(pages_of(address, size));
    PagedHeap::Block block = heap.allocate(bytes);
    std::set<int64_t> needed = pages_of(block.address, bytes);
    for (int64_t page : block.returned) {
      REQUIRE(!in_use.contains(page));
      REQUIRE(!needed.contains(page));
      REQUIRE(with_memory.erase(page) == 1);
    }
    n_returned += block.returned.size();
    in_use.merge(std::set(needed));
    with_memory.merge(needed);  // the system adds what lacks
    most_in_use = std::max(most_in_use, in_use.size());
    blocks[block.address] = bytes;
    REQUIRE(heap.most_bytes() == int64_t(most_in_use) * PagedHeap::page_bytes);
    REQUIRE(with_memory.size() <= most_in_use);
  }
  CHECK(n_returned > 200);
}

#if !defined(__SANITIZE_ADDRESS__)

TEST_CASE_FIXTURE(UsesHeap, "tensors of more than 64 KiB are in the heap") {
  int64_t before = redco::tensor_heap_bytes();
  at::Tensor small = at::empty({64 * kib}, at::kByte), large = at::ones({64 * kib + 1}, at::kByte);
  CHECK(redco::tensor_heap_bytes() == before + 68 * kib);
  CHECK(reinterpret_cast<uintptr_t>(large.data_ptr()) % 4096 == 0);
  large.resize_({mib});
  CHECK(large[64 * kib].item<int>() == 1);
  CHECK(redco::tensor_heap_bytes() == before + mib);
  large.reset();
  CHECK(redco::tensor_heap_bytes() == before);
}

TEST_CASE_FIXTURE(UsesHeap, "freed memory is kept until it is returned") {
  at::Tensor kept = at::ones({16 * mib}, at::kByte);
  at::Tensor freed = at::ones({64 * mib}, at::kByte);
  at::Tensor end = at::ones({mib}, at::kByte);
  int64_t before = resident();
  freed.reset();
  CHECK(resident() > before - 8 * mib);
  redco::return_free_memory();
  CHECK(resident() < before - 56 * mib);
  CHECK(kept.min().item<int>() == 1);
  CHECK(at::full({64 * mib}, 2, at::kByte).min().item<int>() == 2);
}

TEST_CASE_FIXTURE(UsesHeap, "free memory between tensors serves a larger one") {
  redco::return_free_memory();
  std::vector<at::Tensor> tensors(64);
  auto fill = [&] {
    for (size_t i = 0; i < tensors.size(); ++i)
      if (!tensors[i].defined()) tensors[i] = at::full({6 * mib}, int(i), at::kByte);
  };
  fill();
  const int64_t before = resident();
  for (int round = 0; round < 20; ++round) {
    for (size_t i = size_t(round % 2); i < tensors.size(); i += 2) tensors[i].reset();
    at::Tensor large = at::full({120 * mib}, 100, at::kByte);
    CHECK(resident() < before + 8 * mib);
    CHECK(large.min().item<int>() == 100);
    large.reset();
    fill();
    CHECK(resident() < before + 8 * mib);
    for (size_t i = 0; i < tensors.size(); ++i) {
      REQUIRE(tensors[i].min().item<int>() == int(i));
      REQUIRE(tensors[i].max().item<int>() == int(i));
    }
  }
}

TEST_CASE_FIXTURE(UsesHeap, "threads allocate and free each other's tensors") {
  int64_t before = redco::tensor_heap_bytes();
  std::vector<at::Tensor> made(8);
  auto work = [&](size_t from) {
    for (int i = 0; i < 500; ++i)
      for (size_t k = from; k < made.size(); k += 2) {
        at::Tensor one = at::full({100000 + i}, int(k), at::kByte);
        if (i == 499) made[k] = one;
        REQUIRE(one.sum(at::kLong).item<int64_t>() == int64_t(k) * (100000 + i));
      }
  };
  std::thread other(work, 1);
  work(0);
  other.join();
  for (size_t k = 0; k < made.size(); ++k) CHECK(made[k].max().item<int>() == int(k));
  made.clear();
  CHECK(redco::tensor_heap_bytes() == before);
}

TEST_CASE_FIXTURE(UsesHeap, "a child process has its own copy") {
  at::Tensor shared = at::ones({mib}, at::kByte);
  pid_t child = fork();
  if (child == 0) {
    at::Tensor own = at::empty({2 * mib}, at::kByte);  // no operator: it may wait for threads
    std::memset(shared.data_ptr(), 2, mib);
    std::memset(own.data_ptr(), 3, 2 * mib);
    auto first = [](const at::Tensor& tensor) { return *tensor.const_data_ptr<uint8_t>(); };
    _exit(first(shared) == 2 && first(own) == 3 ? 0 : 1);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK(shared.max().item<int>() == 1);
}

TEST_CASE_FIXTURE(UsesHeap, "a tensor for which there is no memory is an error, and others work") {
  // More than the address space that is reserved, and more than the system grants.
  for (int64_t bytes : {int64_t{1} << 46, int64_t{3} * sysconf(_SC_PHYS_PAGES) * 4096}) {
    CHECK_THROWS_WITH(at::empty({bytes}, at::kByte), doctest::Contains("DefaultCPUAllocator"));
    CHECK(at::ones({mib}, at::kByte).sum(at::kLong).item<int64_t>() == mib);
  }
}

#endif
