// Determines the rank of this process and the size of its run.
#include <redco/mesh.h>

#include "schedulers.h"

#include "../core/require_usage.h"

namespace redco {

using namespace mesh;

namespace {

constexpr int64_t default_port = 11111;

Processes checked(const Processes& found) {
  require_usage(found.rank < found.size, found.source, ": process ", found.rank, " of ", found.size,
                ": processes count from 0");
  require_usage(found.local_rank < found.local_size, found.source, ": process ", found.local_rank,
                " of ", found.local_size, " on its host: processes count from 0");
  require_usage(found.store_address.empty() || (found.store_port > 0 && found.store_port < 65536),
                found.source, ": there is no port ", found.store_port,
                "; host0_port (--host0-port, REDCO_HOST0_PORT) is 1 to 65535");
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

// Explicit numbers: one process on each host.
std::optional<Processes> place(const ProcessOptions& options, const char* source) {
  require_usage(options.n_processes || !options.process_id, source,
                ": process_id needs n_processes beside it");
  if (!options.n_processes) return std::nullopt;
  Processes stated;
  stated.source = source;
  stated.size = *options.n_processes;
  require_usage(stated.size > 0, source, ": n_processes = ", stated.size, " must be positive");
  require_usage(stated.size == 1 || options.process_id, source, ": n_processes = ", stated.size,
                " needs process_id, another on each");
  stated.rank = options.process_id.value_or(0);
  require_usage(stated.rank >= 0, source, ": process_id = ", stated.rank, " must not be negative");
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
  if (by_scheduler) return checked(*by_scheduler);
  require_usage(by_options || by_variables || !(stated.host0_address || stated.host0_port),
                "host0_address and host0_port need n_processes beside them");
  if (!by_options && !by_variables) return {};
  Processes found = by_options ? *by_options : *by_variables;
  found.store_address = stated.host0_address.value_or("");
  found.store_port = stated.host0_port.value_or(default_port);
  found.hosts_store = found.rank == 0;
  return checked(found);
}

}  // namespace redco
