#pragma once

#include <redco/mesh.h>

#include <cstdint>
#include <functional>

/// How many processes a piece of a test runs in, and how.
struct Layout {
  int64_t n_processes = 2;
  int64_t n_model_shards = 1;
  std::chrono::seconds time_limit = std::chrono::seconds(240);
  int64_t victim = -1;  ///< a process that may end as badly as it likes
};

/// Runs `body` in several processes at once, each with its mesh; checks that fail in any of them
/// fail the test, which names the process. The processes are this program, started again: what
/// stands before the call in the test case runs in them too, what stands after does not have to be
/// reached. None outlives the call. A start costs about 0.3 s: let a body do much.
///
///     TEST_CASE("ranks differ") {
///       in_processes({.n_processes = 4, .n_model_shards = 2}, [](redco::Mesh& mesh) {
///         CHECK(mesh.size(redco::Mesh::mp) == 2);
///       });
///     }
void in_processes(const Layout& layout, const std::function<void(redco::Mesh&)>& body);

/// The same without a mesh: `body` gets this process's place, to make meshes of its own.
void in_bare_processes(const Layout& layout,
                       const std::function<void(const redco::Processes&)>& body);
