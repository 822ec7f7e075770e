#pragma once

#include <redco/moves.h>

namespace redco::sharding {

/// Warns, once per operator and thread, that it gathers many bytes. Null: it has gathered nothing.
void warn_of_gather(const std::pair<const Move, Moved>* gathered);

}  // namespace redco::sharding
