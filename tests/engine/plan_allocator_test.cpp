#include "../../engine/plan/cost/allocator_model.h"

#include <redco/error.h>

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>
#include <string>

using redco::plan::AllocatorUse;
using redco::plan::MemoryKind;
using redco::plan::replay;
using redco::plan::StepLog;

namespace {

constexpr int64_t kib = 1024, mib = 1024 * kib;

// A log of allocations. Blocks are numbered from 1.
struct Log : StepLog {
  int64_t n = 0;
  std::vector<int64_t> sizes = {0};

  int64_t allocate(int64_t bytes, MemoryKind kind = MemoryKind::activation) {
    add({++n, bytes, kind});
    sizes.push_back(bytes);
    return n;
  }
  void release(int64_t block) { add({block, -sizes[size_t(block)], MemoryKind::activation}); }
};

AllocatorUse cuda(const StepLog& log, std::optional<int64_t> capacity = {}, int64_t n_steps = 1) {
  return replay(log, capacity, n_steps);
}

// What PyTorch's allocator did on a GPU: a file of cuda_allocations, which its README describes.
struct Recording {
  struct Growth {
    size_t n_before;  // entries of the log before the allocation that needed a segment
    int64_t reserved_before, reserved;
  };
  Log log;
  std::vector<Growth> growths;
  std::map<std::string, int64_t> numbers;  // of the whole run
  int64_t failed = 0;                      // bytes of an allocation after the log, which failed

  explicit Recording(const std::string& name) {
    auto folder = std::filesystem::path(TESTS_FOLDER) / "engine/cuda_allocations";
    std::ifstream file(folder / (name + ".txt"));
    REQUIRE(file.is_open());
    int64_t now = 0, most = 0;
    for (std::string word; file >> word;) {
      if (word[0] == '+') {
        log.allocate(std::stoll(word));
        continue;
      }
      if (word[0] == '-') {
        log.release(-std::stoll(word));
        continue;
      }
      int64_t number = 0;
      REQUIRE(bool(file >> number));
      if (word == "reserve") {
        int64_t before = most;
        most = std::max(most, now += number);
        growths.push_back({log.allocations.size(), before, most});
      } else if (word == "return") {
        now -= number;
      } else if (word == "fail") {
        failed = number;
      } else {
        numbers[word] = number;
      }
    }
  }
};

}  // namespace

TEST_CASE("cuda: small blocks share segments of 2 MiB and round up to 512 bytes") {
  Log log;
  log.allocate(100);
  CHECK(cuda(log).allocated == 100);
  CHECK(cuda(log).reserved == 2 * mib);
  CHECK(cuda(log).fragmentation() == 2 * mib - 100);
  for (int i = 0; i < 4095; ++i) log.allocate(513 - 512);  // 4096 blocks of 512 bytes fill it
  CHECK(cuda(log).reserved == 2 * mib);
  log.allocate(1);
  CHECK(cuda(log).reserved == 4 * mib);
  // Of 1 MiB exactly two fit in one.
  Log large;
  large.allocate(mib), large.allocate(mib);
  CHECK(cuda(large).reserved == 2 * mib);
}

TEST_CASE("what a step leaves is what the next one finds") {
  // A parameter and its gradient. The step frees the gradient, has an activation in its place, and
  // makes and keeps another gradient.
  Log log;
  log.allocate(30 * mib);
  int64_t gradient = log.allocate(20 * mib);
  log.n_before = 2;
  log.release(gradient);
  log.release(log.allocate(20 * mib));
  log.allocate(20 * mib);
  for (int64_t n_steps : {1, 2, 5}) {
    CHECK(cuda(log, {}, n_steps).allocated == 50 * mib);
    CHECK(cuda(log, {}, n_steps).reserved == 50 * mib);
  }
  // A block that was allocated once, and not again, is freed once.
  Log once;
  int64_t garbage = once.allocate(50 * mib);
  once.n_before = 1;
  once.release(garbage);
  once.release(once.allocate(40 * mib));
  CHECK(cuda(once, {}, 3).allocated == 50 * mib);
}

TEST_CASE("cuda: medium blocks share segments of 20 MiB, large ones round up to 2 MiB") {
  Log log;
  log.allocate(5 * mib);
  CHECK(cuda(log).reserved == 20 * mib);
  log.allocate(5 * mib), log.allocate(5 * mib), log.allocate(4 * mib);
  CHECK(cuda(log).reserved == 20 * mib);
  log.allocate(2 * mib);  // 1 MiB is left
  CHECK(cuda(log).reserved == 40 * mib);

  Log large;
  large.allocate(11 * mib);
  CHECK(cuda(large).reserved == 12 * mib);
  // The rest of 1 MiB is not split off, so even 1 MiB and a byte needs a segment.
  large.allocate(mib + 1);
  CHECK(cuda(large).reserved == 32 * mib);
  Log exact;
  exact.allocate(10 * mib);
  CHECK(cuda(exact).reserved == 10 * mib);
}

TEST_CASE("cuda: a rest of more than 1 MiB of a large segment is used") {
  Log log;
  int64_t first = log.allocate(40 * mib);
  log.release(first);
  log.allocate(38 * mib);  // leaves 2 MiB
  log.allocate(2 * mib);
  CHECK(cuda(log).reserved == 40 * mib);
  log.allocate(2 * mib);
  CHECK(cuda(log).reserved == 60 * mib);
}

TEST_CASE("cuda: a rest of 1 MiB stays with its block") {
  Log log;
  int64_t first = log.allocate(7 * mib), second = log.allocate(2 * mib);
  log.allocate(9 * mib), log.allocate(2 * mib);  // 20 MiB
  log.release(first);
  log.allocate(6 * mib);  // in the place of 7
  log.release(second);
  log.allocate(3 * mib);  // would fit in 1 and 2 MiB
  CHECK(cuda(log).reserved == 40 * mib);
}

TEST_CASE("cuda: best fit, and merging of free neighbours") {
  Log log;
  int64_t a = log.allocate(30 * mib), b = log.allocate(12 * mib);
  log.release(a), log.release(b);
  log.allocate(12 * mib);  // takes b, though a is free too
  log.allocate(30 * mib);
  CHECK(cuda(log).reserved == 42 * mib);

  Log merged;
  int64_t x = merged.allocate(5 * mib), y = merged.allocate(5 * mib), z = merged.allocate(5 * mib);
  merged.allocate(5 * mib);
  merged.release(x), merged.release(z);
  Log apart = merged;
  apart.allocate(10 * mib);  // 5 and 5 MiB, not neighbours
  CHECK(cuda(apart).reserved == 30 * mib);
  merged.release(y);
  merged.allocate(15 * mib);
  CHECK(cuda(merged).reserved == 20 * mib);
  CHECK(cuda(merged).allocated == 20 * mib);
}

TEST_CASE("cuda: unused segments are returned before memory runs out") {
  Log log;
  int64_t a = log.allocate(12 * mib);
  log.release(a);
  log.allocate(30 * mib);
  CHECK(cuda(log).reserved == 42 * mib);
  AllocatorUse tight = cuda(log, 32 * mib);
  CHECK_FALSE(tight.is_out_of_memory);
  CHECK(tight.reserved == 30 * mib);
  CHECK(tight.n_retries == 1);
  CHECK(cuda(log, 29 * mib).is_out_of_memory);
  // A segment in use is not returned, even if most of it is free.
  Log split;
  int64_t big = split.allocate(5 * mib);
  split.allocate(5 * mib);
  split.release(big);
  split.allocate(15 * mib);
  CHECK(cuda(split, 30 * mib).is_out_of_memory);
  CHECK_FALSE(cuda(split, 36 * mib).is_out_of_memory);
}

TEST_CASE("cuda: the segments that PyTorch reserved in training on a GPU") {
  Recording recording("h100");
  auto& numbers = recording.numbers;
  const int64_t capacity = numbers.at("capacity");
  AllocatorUse use = cuda(recording.log, capacity);
  CHECK(use.allocated == numbers.at("allocated"));
  CHECK(use.reserved == numbers.at("reserved"));
  CHECK(use.n_retries == numbers.at("retries") - 1);
  CHECK_FALSE(use.is_out_of_memory);
  // Each segment has the recorded size, and the recorded allocation needs it.
  REQUIRE(recording.growths.size() > 10);
  auto reserved_after = [&](size_t n_entries) {
    const auto& all = recording.log.allocations;
    StepLog part;
    part.allocations.assign(all.begin(), all.begin() + ptrdiff_t(n_entries));
    return cuda(part, capacity).reserved;
  };
  for (const Recording::Growth& growth : recording.growths) {
    CAPTURE(growth.n_before);
    CHECK(reserved_after(growth.n_before) == growth.reserved_before);
    CHECK(reserved_after(growth.n_before + 1) == growth.reserved);
  }
  recording.log.allocate(recording.failed);
  use = cuda(recording.log, capacity);
  CHECK(use.is_out_of_memory);
  CHECK(use.n_retries == numbers.at("retries"));
}

TEST_CASE("the kinds at the peak, and what stays allocated in the second step") {
  Log log;
  log.allocate(3 * mib, MemoryKind::parameters);
  log.allocate(2 * mib, MemoryKind::states);
  int64_t activation = log.allocate(8 * mib), temporary = log.allocate(mib, MemoryKind::temporary);
  log.release(temporary);
  int64_t gradient = log.allocate(3 * mib, MemoryKind::gradients);
  log.release(activation);
  log.release(gradient);
  for (int64_t steps : {1, 2, 3}) {
    AllocatorUse use = cuda(log, {}, steps);
    CHECK(use.allocated == 16 * mib);
    CHECK(use.kinds[size_t(MemoryKind::parameters)] == 3 * mib);
    CHECK(use.kinds[size_t(MemoryKind::states)] == 2 * mib);
    CHECK(use.kinds[size_t(MemoryKind::activation)] == 8 * mib);
    CHECK(use.kinds[size_t(MemoryKind::gradients)] == 3 * mib);
    CHECK(std::accumulate(use.kinds.begin(), use.kinds.end(), int64_t(0)) == use.allocated);
  }
}

TEST_CASE("logs that cannot be") {
  Log twice;
  twice.add({1, 8, MemoryKind::activation});
  twice.add({1, 8, MemoryKind::activation});
  CHECK_THROWS_WITH_AS(cuda(twice), "the log allocates block 1 twice", redco::Error);
  Log unknown;
  unknown.add({7, -8, MemoryKind::activation});
  CHECK_THROWS_WITH_AS(cuda(unknown), "the log frees block 7, which is not allocated",
                       redco::Error);
  Log other;
  other.add({1, 8, MemoryKind::activation});
  other.add({1, -16, MemoryKind::activation});
  CHECK_THROWS_WITH_AS(cuda(other), "the log frees 16 bytes of block 1, which has 8", redco::Error);
}
