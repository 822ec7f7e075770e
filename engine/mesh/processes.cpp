// Determines the rank of this process and the size of its run.
#include <redco/mesh.h>

#include "schedulers.h"

#include "../core/require_usage.h"

#include <netdb.h>
#include <sys/socket.h>

#include <string>
#include <utility>

namespace redco {

using namespace mesh;

namespace {

constexpr int64_t default_port = 11111;

// Returns the address without the brackets that it has in a URL: `::1` for `[::1]`. Refuses a text
// that is neither an address nor a host name: looking it up would take until the timeout.
std::string checked_address(const std::string& address, const std::string& source) {
  bool has_brackets = address.size() > 2 && address.front() == '[' && address.back() == ']';
  std::string plain = has_brackets ? address.substr(1, address.size() - 2) : address;
  if (plain.find_first_of(":/[] ") == std::string::npos) return plain;
  addrinfo numeric = {};
  numeric.ai_flags = AI_NUMERICHOST;
  addrinfo* found = nullptr;
  bool is_address = getaddrinfo(plain.c_str(), nullptr, &numeric, &found) == 0;
  if (is_address) freeaddrinfo(found);
  require_usage(is_address, source, ": the address of host 0, \"", address,
                "\", is neither a name nor an address such as 10.0.0.1 or fd00::1; its port is "
                "host0_port (--host0-port, REDCO_HOST0_PORT)");
  return plain;
}

Processes checked(Processes found) {
  require_usage(found.rank < found.size, found.source, ": process ", found.rank, " of ", found.size,
                ": processes count from 0");
  require_usage(found.local_rank < found.local_size, found.source, ": process ", found.local_rank,
                " of ", found.local_size, " on its host: processes count from 0");
  require_usage(found.store_address.empty() || (found.store_port > 0 && found.store_port < 65536),
                found.source, ": there is no port ", found.store_port,
                "; host0_port (--host0-port, REDCO_HOST0_PORT) is 1 to 65535");
  found.store_address = checked_address(found.store_address, found.source);
  return found;
}

// Reads the variables for schedulers without variables of their own; redco-lua's options set them
// too.
ProcessOptions read_variables() {
  auto number = [](const char* name) {
    return find_variable(name) == nullptr ? std::nullopt : std::optional(variable(name, 0, 0));
  };
  ProcessOptions read;
  read.n_processes = number("REDCO_N_PROCESSES");
  read.process_id = number("REDCO_PROCESS_ID");
  if (const char* address = find_variable("REDCO_HOST0_ADDRESS")) read.host0_address = address;
  read.host0_port = number("REDCO_HOST0_PORT");
  return read;
}

constexpr const char* n_processes_options = " (--n-processes, REDCO_N_PROCESSES)";
constexpr const char* process_id_options = " (--process-id, REDCO_PROCESS_ID)";

// Explicit numbers: one process on each host.
std::optional<Processes> place(const ProcessOptions& options, const char* source) {
  require_usage(options.n_processes || !options.process_id, "process_id", process_id_options,
                " needs n_processes", n_processes_options, ", the number of machines");
  if (!options.n_processes) return std::nullopt;
  Processes stated;
  stated.source = source;
  stated.size = *options.n_processes;
  require_usage(stated.size > 0, "n_processes = ", stated.size, n_processes_options,
                " must be positive");
  require_usage(stated.size == 1 || options.process_id, "n_processes = ", stated.size,
                n_processes_options, " needs process_id", process_id_options,
                ", another number on each machine");
  stated.rank = options.process_id.value_or(0);
  require_usage(stated.rank >= 0, "process_id = ", stated.rank, process_id_options,
                " must not be negative");
  return stated;
}

void require_same(const std::optional<Processes>& a, const std::optional<Processes>& b) {
  if (!a || !b) return;
  require_usage(a->size == b->size && a->rank == b->rank, "this is process ", a->rank, " of ",
                a->size, ", say ", a->source, "; process ", b->rank, " of ", b->size, ", say ",
                b->source, ": leave the former out where something starts the processes");
}

}  // namespace

Processes find_processes(const ProcessOptions& options) {
  ProcessOptions variables = read_variables();
  auto by_options = place(options, "the options n_processes and process_id");
  auto by_variables = place(variables, "REDCO_N_PROCESSES and REDCO_PROCESS_ID");
  ProcessOptions stated = options;
  if (!stated.host0_address) stated.host0_address = variables.host0_address;
  if (!stated.host0_port) stated.host0_port = variables.host0_port;
  auto by_scheduler = find_scheduler(stated);
  require_same(by_options, by_scheduler);
  require_same(by_variables, by_scheduler);
  require_same(by_options, by_variables);
  if (by_scheduler) return checked(std::move(*by_scheduler));
  require_usage(by_options || by_variables || !(stated.host0_address || stated.host0_port),
                stated.host0_address ? "host0_address (--host0-address, REDCO_HOST0_ADDRESS)"
                                     : "host0_port (--host0-port, REDCO_HOST0_PORT)",
                " needs n_processes", n_processes_options, ", the number of machines");
  if (!by_options && !by_variables) return {};
  Processes found = by_options ? *by_options : *by_variables;
  found.store_address = stated.host0_address.value_or("");
  found.store_port = stated.host0_port.value_or(default_port);
  found.hosts_store = found.rank == 0;
  return checked(std::move(found));
}

}  // namespace redco
