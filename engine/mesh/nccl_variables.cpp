// The environment variables that only NCCL and c10d read.
#include "nccl.h"

#include "schedulers.h"
#include "store/sockets.h"

#include <redco/error.h>

#include <cstdlib>
#include <fstream>
#include <string>

namespace redco::mesh {

using namespace store;

namespace {

// Whether one of NCCL's configuration files sets a variable. A variable in the environment takes
// precedence over these files.
bool is_configured(const std::string& name) {
  const char* named = std::getenv("NCCL_CONF_FILE");
  const char* home = std::getenv("HOME");
  const std::string own = std::string(home == nullptr ? "" : home) + "/.nccl.conf";
  for (const std::string& path : {named == nullptr ? own : named, std::string("/etc/nccl.conf")}) {
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);)
      if (line.starts_with(name + "=")) return true;
  }
  return false;
}

}  // namespace

void set_nccl_variables(const Processes& processes) {
  // By default NCCL takes the first network card that it finds. On several hosts, does not pass on
  // a loopback interface: it only means that this host's own name resolves to a loopback address.
  constexpr const char* interface = "NCCL_SOCKET_IFNAME";
  if (find_variable(interface) == nullptr && !is_configured(interface)) {
    const std::string& store = processes.store_address;
    const std::string own = address_towards(store);
    const bool is_one_host = processes.local_size == processes.size;
    const std::string name = interface_of(own);
    if (!name.empty() && (is_one_host || is_loopback(store) || !is_loopback(own)))
      setenv(interface, ("=" + name).c_str(), 1);
  }
  // CleanUpOnly: c10d's watchdog would end the process when a connection breaks, before the failed
  // process is reported.
  setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2", 0);
  // c10d would end a process that was suspended for minutes. Peers watches the processes.
  setenv("TORCH_NCCL_ENABLE_MONITORING", "0", 0);
  // Disables the record of each collective: it costs some microseconds, and nothing here reads it.
  if (find_variable("TORCH_NCCL_TRACE_BUFFER_SIZE") == nullptr)
    setenv("TORCH_FR_BUFFER_SIZE", "0", 0);
}

}  // namespace redco::mesh
