// Standard input, output and error of this program.

#pragma once

#include <string_view>

namespace redco {

/// Opens /dev/null for each of the three that is closed. Otherwise a later file or pipe would get
/// its number, and with it what is written to it.
void open_standard_files();

/// Writes all bytes to a descriptor, STDOUT_FILENO or STDERR_FILENO.
void write_all(int to, std::string_view bytes);

/// Writes what stdout has buffered. Returns `code`, or 1 with a message if `code` is 0 and some
/// output could not be written, as on a full disk.
int checked_exit_code(int code);

/// Makes `exit` end this program with `checked_exit_code`.
void check_output_at_exit();

}  // namespace redco
