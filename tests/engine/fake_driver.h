#pragma once

#include <array>
#include <map>
#include <string>
#include <thread>
#include <vector>

namespace redco::testing {

/// A stand-in for NVRTC and for the driver, under the name of LibTorch's library that links
/// them. The machine code of a source is the options and the source.
struct FakeDriver {
  struct Launch {
    std::string kernel, code;
    std::array<unsigned, 3> blocks;
    unsigned n_threads, shared_bytes;
    int most_shared;  ///< bytes that the kernel was allowed to have; 0: not asked for
    bool has_context;
  };

  int n_compiled = 0;
  int nvrtc_minor = 1;
  std::map<int, int> minor_of_device;  ///< of the compute capability 9.x
  bool fails_to_compile = false;
  std::map<std::thread::id, int> n_contexts_made;
  std::vector<Launch> launches;
};

FakeDriver& fake_driver();

}  // namespace redco::testing
