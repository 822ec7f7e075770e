#pragma once

#include <string>

namespace redco {

/// Writes why this process ends where torchrun looks for it, TORCHELASTIC_ERROR_FILE, so that its
/// summary shows it. Does nothing where no torchrun asks.
void write_error_file(const std::string& message, const std::string& traceback);

}  // namespace redco
