#include "../../engine/mesh/run/peers.h"

#include <redco/detail/run_store.h>

#include <doctest/doctest.h>

TEST_CASE("many looks within one round are one look") {
  redco::mesh::Peers peers({}, redco::RunStore::open());
  auto what = [] { return std::string("a collective"); };
  // As waits on a GPU, which return at once.
  for (int i = 0; i < 200; ++i) CHECK_NOTHROW(peers.check(what, {}));
  peers.stop();
}
