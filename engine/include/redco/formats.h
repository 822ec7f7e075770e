#pragma once

#include <redco/error.h>
#include <redco/export.h>

#include <cstdint>
#include <string>

namespace redco {

/// The numbers of the file formats that this program defines. Each file has its number in the field
/// `format`, which is read before anything else that may change.
inline constexpr int64_t checkpoint_format = 1;  ///< info.json
inline constexpr int64_t tree_format = 1;        ///< a tree's description in a safetensors file
inline constexpr int64_t cluster_format = 1;     ///< cluster.toml

/// A file is intact, but this program cannot read its format: a newer one wrote it, or one from
/// before formats had numbers.
class REDCO_API UnknownFormat : public Error {
 public:
  using Error::Error;
};

/// Throws UnknownFormat, beginning with `where`, unless `format` is from 1 to `newest`. 0 stands
/// for a file without the number.
REDCO_API void check_format(const std::string& where, int64_t format, int64_t newest);

}  // namespace redco
