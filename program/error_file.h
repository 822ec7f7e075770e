#pragma once

#include <string>

namespace redco {

/// Writes the error that ends this process to TORCHELASTIC_ERROR_FILE, so that torchrun's summary
/// shows it. Does nothing without torchrun.
void write_error_file(const std::string& message, const std::string& traceback);

}  // namespace redco
