// The order in which the stages of a pipeline take their turns.
#include "../../engine/train/step/pipeline.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

using namespace redco::train;

namespace {

std::string written(const std::vector<Turn>& turns) {
  std::string text;
  for (const Turn& turn : turns)
    text += (turn.is_backward ? "B" : "F") + std::to_string(turn.micro_batch) + " ";
  return text;
}

// The moment at which all stages are done, if a turn takes one: a forward pass begins after that of
// the stage before, a backward pass after that of the stage behind. 0 if they wait for each other.
int64_t moments(int64_t n_stages, size_t n_batches) {
  std::vector<std::vector<Turn>> turns;
  for (int64_t stage = 0; stage < n_stages; ++stage)
    turns.push_back(turns_of(stage, n_stages, n_batches));
  std::vector<size_t> next(size_t(n_stages), 0);
  std::set<std::pair<int64_t, std::pair<size_t, bool>>> done;
  for (int64_t moment = 1; moment < 1000; ++moment) {
    auto before = done;
    for (int64_t stage = 0; stage < n_stages; ++stage) {
      size_t& place = next[size_t(stage)];
      if (place == turns[size_t(stage)].size()) continue;
      const auto [i, is_backward] = turns[size_t(stage)][place];
      const int64_t from = is_backward ? stage + 1 : stage - 1;
      const bool is_first = from < 0 || from == n_stages;
      if (!is_first && !before.contains({from, {i, is_backward}})) continue;
      done.insert({stage, {i, is_backward}});
      ++place;
    }
    if (done.size() == size_t(n_stages) * n_batches * 2) return moment;
    if (done.size() == before.size()) return 0;
  }
  return 0;
}

}  // namespace

TEST_CASE("one stage ends each micro-batch before the next") {
  CHECK(written(turns_of(0, 1, 3)) == "F0 B0 F1 B1 F2 B2 ");
}

TEST_CASE("the first of three stages is two micro-batches ahead") {
  CHECK(written(turns_of(0, 3, 4)) == "F0 F1 F2 B0 F3 B1 B2 B3 ");
  CHECK(written(turns_of(1, 3, 4)) == "F0 F1 B0 F2 B1 F3 B2 B3 ");
  CHECK(written(turns_of(2, 3, 4)) == "F0 B0 F1 B1 F2 B2 F3 B3 ");
}

TEST_CASE("fewer micro-batches than stages") {
  CHECK(written(turns_of(0, 4, 2)) == "F0 F1 B0 B1 ");
  CHECK(written(turns_of(3, 4, 2)) == "F0 B0 F1 B1 ");
}

TEST_CASE("stages wait for n_stages - 1 forward and as many backward passes") {
  for (int64_t n_stages : {1, 2, 3, 4, 7})
    for (size_t n_batches : {1, 2, 5, 16})
      CHECK(moments(n_stages, n_batches) == 2 * (int64_t(n_batches) + n_stages - 1));
}
