#pragma once

#include <redco/export.h>

#include <functional>
#include <string>
#include <string_view>

namespace redco {

/// Returns the result of `make` for this key, which names all that the result depends on. A file of
/// the folder keeps it for later calls, also those of other processes. Without a folder (""), with
/// one that cannot be written, or with a damaged file, `make` is called again.
REDCO_API std::string kept_code(const std::string& folder, std::string_view key,
                                const std::function<std::string()>& make);

}  // namespace redco
