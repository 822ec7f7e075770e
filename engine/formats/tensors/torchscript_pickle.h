#pragma once

#include "zip_archive.h"

#include <string>
#include <string_view>

namespace redco::io {

/// Throws Error, beginning with `where`, unless this is a pickle as torch.jit.save writes it, whose
/// tensors are within their storages, and these within the files in `folder` of the archive.
void check_pickle(const std::string& where, std::string_view pickle, const std::string& folder,
                  const ZipMembers& members);

}  // namespace redco::io
