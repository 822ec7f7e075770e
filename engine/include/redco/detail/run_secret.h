#pragma once

#include <redco/export.h>

#include <string>

namespace redco {

/// The secret that the processes of a run share. Only processes that have it can reach the run's
/// store.
struct RunSecret {
  std::string text;
  std::string source;  ///< for messages: "the file /home/ada/.config/redco/secret"
};

constexpr const char* secret_variable = "REDCO_SECRET";
constexpr const char* secret_file_variable = "REDCO_SECRET_FILE";

/// Returns the text of REDCO_SECRET, or of the file that REDCO_SECRET_FILE names, or of the user's
/// own file, $XDG_CONFIG_HOME/redco/secret or ~/.config/redco/secret, which is created if missing.
/// Throws UsageError for a secret that is too short, cannot be read, or can be read by other users.
REDCO_API RunSecret find_run_secret();

/// Returns a new secret of 256 random bits.
REDCO_API std::string random_secret();

}  // namespace redco
