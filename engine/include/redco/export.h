#pragma once

/// Marks what the libraries `redco` and `redco_lua` export; everything else is hidden.
#define REDCO_API __attribute__((visibility("default")))
