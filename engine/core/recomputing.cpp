// Which results this thread's blocks keep for backward, and whether it computes something again.

#include <redco/detail/recomputing.h>
#include <redco/error.h>

#include <array>
#include <utility>

namespace redco {

namespace {

constexpr std::array all = {Recompute::none, Recompute::selective, Recompute::blocks};

thread_local bool is_recomputing = false;
thread_local Recompute recompute_of_blocks = Recompute::none;
thread_local int64_t n_marked_blocks = 0;

}  // namespace

const char* name_of(Recompute recompute) {
  switch (recompute) {
    case Recompute::none:
      return "none";
    case Recompute::selective:
      return "selective";
    case Recompute::blocks:
      return "blocks";
  }
  return "";
}

Recompute parse_recompute(const std::string& name, const std::string& where) {
  for (Recompute each : all)
    if (name == name_of(each)) return each;
  fail(where, ": recompute = \"", name, "\" is not \"none\", \"selective\" or \"blocks\"");
}

Recomputing::Recomputing(bool is_on) : outer_(std::exchange(is_recomputing, is_on)) {}
Recomputing::~Recomputing() { is_recomputing = outer_; }
bool Recomputing::is_on() { return is_recomputing; }

RecomputeBlocks::RecomputeBlocks(Recompute how) : outer_(std::exchange(recompute_of_blocks, how)) {}
RecomputeBlocks::~RecomputeBlocks() { recompute_of_blocks = outer_; }
Recompute RecomputeBlocks::how() { return recompute_of_blocks; }
void RecomputeBlocks::count_block() { ++n_marked_blocks; }
int64_t RecomputeBlocks::n_blocks() { return n_marked_blocks; }

}  // namespace redco
