#include <redco/group.h>

namespace redco {

const char* Group::name(Kind kind) {
  static constexpr const char* names[] = {"all_reduce", "all_gather", "reduce_scatter",
                                          "all_to_all"};
  static_assert(std::size(names) == n_kinds);
  return names[kind];
}

}  // namespace redco
