#pragma once

#include <redco/export.h>

namespace redco {

/// Throws Stopped if this thread runs an evaluation, or a hook after one, of a `fit` that was asked
/// to end. For loops inside of a batch, such as those over tokens. With several processes it looks
/// only inside of a batch, which all of them compute.
REDCO_API void check_stop();

}  // namespace redco
