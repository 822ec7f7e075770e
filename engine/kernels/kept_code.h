#pragma once

#include <redco/export.h>

#include <functional>
#include <string>
#include <string_view>

namespace redco {

/// What `make` returns for this key, which says all that it depends on. It is kept in a file of the
/// folder for later calls, also those of other processes. No folder (""), one that cannot be
/// written, and a damaged file cost a call of `make`.
REDCO_API std::string kept_code(const std::string& folder, std::string_view key,
                                const std::function<std::string()>& make);

}  // namespace redco
