// The order in which the stages of a pipeline take their turns.
#include "../../engine/train/step/pipeline.h"

#include <doctest/doctest.h>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

using namespace redco::train;

namespace {

// Of a micro-batch through a chunk, of all stages.
struct Pass {
  size_t micro_batch;
  int64_t place;
  bool is_backward;
  auto operator<=>(const Pass&) const = default;
};

// "F0 B0" or, with chunks, "F0.1": the second chunk.
std::string written(const std::vector<Turn>& turns) {
  std::string text;
  for (const Turn& turn : turns)
    text += (turn.is_backward ? "B" : "F") + std::to_string(turn.micro_batch) +
            (turn.chunk > 0 ? "." + std::to_string(turn.chunk) : "") + " ";
  return text;
}

// The moment at which all stages are done, if a turn takes one: a forward pass begins after that of
// the chunk before, a backward pass after that of the chunk behind. A stage that ends a backward
// pass waits until another stage has begun with the gradient that it sent n_stages passes before.
// 0 if they wait for each other.
int64_t moments(int64_t n_stages, int64_t n_chunks, size_t n_batches) {
  struct Stage {
    std::vector<Turn> turns;
    size_t next = 0;
    std::vector<Pass> sent;
  };
  std::vector<Stage> stages;
  for (int64_t i = 0; i < n_stages; ++i)
    stages.push_back({turns_of(i, n_stages, n_chunks, n_batches)});
  std::set<Pass> done;
  for (int64_t moment = 1; moment < 10000; ++moment) {
    const std::set<Pass> before = done;
    bool is_done = true;
    for (int64_t i = 0; i < n_stages; ++i) {
      auto& [turns, next, sent] = stages[size_t(i)];
      if (next == turns.size()) continue;
      is_done = false;
      if (sent.size() > size_t(n_stages) &&
          !before.contains(sent[sent.size() - size_t(n_stages) - 1]))
        continue;
      const auto [batch, chunk, is_backward] = turns[next];
      const int64_t place = chunk * n_stages + i, from = is_backward ? place + 1 : place - 1;
      const bool is_first = from < 0 || from == n_stages * n_chunks;
      if (!is_first && !before.contains({batch, from, is_backward})) continue;
      if (is_backward && !before.contains({batch, place, false})) return 0;
      if (is_backward && place > 0) sent.push_back({batch, place - 1, true});
      done.insert({batch, place, is_backward});
      ++next;
    }
    if (is_done) return moment - 1;
    if (done.size() == before.size()) return 0;
  }
  return 0;
}

// The order in which messages are sent from a stage to the next one, or back, and that in which
// they are received there.
std::pair<std::vector<Pass>, std::vector<Pass>> messages(int64_t from, bool is_backward,
                                                         int64_t n_stages, int64_t n_chunks,
                                                         size_t n_batches) {
  const int64_t step = is_backward ? -1 : 1, n = n_stages * n_chunks;
  const int64_t to = (from + step + n_stages) % n_stages;
  std::pair<std::vector<Pass>, std::vector<Pass>> found;
  for (const Turn& turn : turns_of(from, n_stages, n_chunks, n_batches)) {
    const int64_t place = turn.chunk * n_stages + from + step;
    if (turn.is_backward == is_backward && place >= 0 && place < n)
      found.first.push_back({turn.micro_batch, place, is_backward});
  }
  for (const Turn& turn : turns_of(to, n_stages, n_chunks, n_batches)) {
    const int64_t place = turn.chunk * n_stages + to;
    if (turn.is_backward == is_backward && place - step >= 0 && place - step < n)
      found.second.push_back({turn.micro_batch, place, is_backward});
  }
  return found;
}

}  // namespace

TEST_CASE("one stage ends each micro-batch before the next") {
  CHECK(written(turns_of(0, 1, 1, 3)) == "F0 B0 F1 B1 F2 B2 ");
}

TEST_CASE("the first of three stages is two micro-batches ahead") {
  CHECK(written(turns_of(0, 3, 1, 4)) == "F0 F1 F2 B0 F3 B1 B2 B3 ");
  CHECK(written(turns_of(1, 3, 1, 4)) == "F0 F1 B0 F2 B1 F3 B2 B3 ");
  CHECK(written(turns_of(2, 3, 1, 4)) == "F0 B0 F1 B1 F2 B2 F3 B3 ");
}

TEST_CASE("fewer micro-batches than stages") {
  CHECK(written(turns_of(0, 4, 1, 2)) == "F0 F1 B0 B1 ");
  CHECK(written(turns_of(3, 4, 1, 2)) == "F0 B0 F1 B1 ");
}

TEST_CASE("two stages of two chunks, in Megatron's order") {
  CHECK(written(turns_of(0, 2, 2, 4)) ==
        "F0 F1 F0.1 F1.1 F2 B0.1 F3 B1.1 F2.1 B0 F3.1 B1 B2.1 B3.1 B2 B3 ");
  CHECK(written(turns_of(1, 2, 2, 4)) ==
        "F0 F1 F0.1 B0.1 F1.1 B1.1 F2 B0 F3 B1 F2.1 B2.1 F3.1 B3.1 B2 B3 ");
}

TEST_CASE("stages wait for n_stages - 1 forward and as many backward passes") {
  for (int64_t n_stages : {1, 2, 3, 4, 7})
    for (size_t n_batches : {1, 2, 5, 16})
      CHECK(moments(n_stages, 1, n_batches) == 2 * (int64_t(n_batches) + n_stages - 1));
}

TEST_CASE("chunks shorten the waiting, and no stage waits forever") {
  for (int64_t n_stages = 2; n_stages <= 8; ++n_stages)
    for (int64_t n_chunks = 1; n_chunks <= 4; ++n_chunks)
      for (size_t n_batches = 1; n_batches <= 17; ++n_batches) {
        INFO(n_stages << " stages, " << n_chunks << " chunks, " << n_batches << " micro-batches");
        const int64_t n_turns = int64_t(n_batches) * n_chunks;
        const int64_t found = moments(n_stages, n_chunks, n_batches);
        if (int64_t(n_batches) >= n_stages)
          CHECK(found == 2 * (n_turns + n_stages - 1));
        else  // the first micro-batch must have left a stage before it comes again
          CHECK(found == 2 * (n_stages * n_chunks + int64_t(n_batches) - 1));
      }
}

TEST_CASE("both ends of a link have the same order") {
  for (int64_t n_stages = 2; n_stages <= 8; ++n_stages)
    for (int64_t n_chunks = 1; n_chunks <= 4; ++n_chunks)
      for (size_t n_batches = 1; n_batches <= 17; ++n_batches)
        for (int64_t stage = 0; stage < n_stages; ++stage)
          for (bool is_backward : {false, true}) {
            const auto [sent, received] =
                messages(stage, is_backward, n_stages, n_chunks, n_batches);
            CHECK((sent == received));
          }
}
