#include "spmd_check.h"

#include <redco/error.h>

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>
#include <vector>

namespace redco {

namespace {

constexpr int64_t text_size = 512;

std::atomic<std::string (*)()> call_site_function = nullptr;

struct Call {
  std::string kind_and_group;  // the same on all processes
  std::string what;            // the same on all of the group
  std::string site;

  std::string text() const { return kind_and_group + '\n' + what + '\n' + site; }

  static Call read(const char* text) {
    std::string all(text, strnlen(text, text_size));
    size_t first = all.find('\n'), second = all.find('\n', first + 1);
    return {all.substr(0, first), all.substr(first + 1, second - first - 1),
            all.substr(second + 1)};
  }
};

std::string story(int64_t process, const Call& call) {
  return "process " + std::to_string(process) + " calls " + call.what +
         (call.site.empty() ? "" : " at " + call.site);
}

}  // namespace

void set_call_site(std::string (*site)()) { call_site_function = site; }

std::string call_site() {
  auto* site = call_site_function.load();
  return site != nullptr ? site() : "";
}

void SpmdCheck::compare(Group::Kind kind, const std::string& what, const GroupParts& group) {
  Call mine{Group::name(kind) + (" " + group.name), what, call_site()};
  auto world = line_->parts();
  auto n = static_cast<int64_t>(world->processes.size());
  at::TensorOptions bytes = at::TensorOptions(at::kByte);
  at::Tensor own = at::zeros({text_size}, bytes), all = at::zeros({n * text_size}, bytes);
  std::string text = mine.text();
  std::memcpy(own.mutable_data_ptr(), text.data(), std::min<size_t>(text.size(), text_size - 1));
  ++n_calls_;
  int64_t number = world->peers->count(world->number);
  auto work = world->backend.c10d->_allgather_base(all, own);
  await(
      *work, [&] { return what; }, number, *world);
  for (int64_t process = 0; process < n; ++process) {
    Call other = Call::read(static_cast<const char*>(all.const_data_ptr()) + process * text_size);
    bool in_group = std::ranges::count(group.processes, process) > 0;
    if (other.kind_and_group == mine.kind_and_group && (!in_group || other.what == mine.what))
      continue;
    fail("the processes stray: as collective number ", n_calls_, " ",
         story(world->processes[static_cast<size_t>(world->rank)], mine), ", but ",
         story(process, other), "; every process must call the same ones in the same order");
  }
}

}  // namespace redco
