// Who this process is among those of a run.
#include <redco/mesh.h>

#include <redco/error.h>

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace redco {

namespace {

constexpr int64_t default_port = 11111;

template <class... Args>
void require_usage(bool condition, const Args&... args) {
  if (condition) return;
  std::ostringstream text;
  (text << ... << args);
  throw UsageError(text.str());
}

const char* find_variable(const char* name) {
  const char* text = std::getenv(name);
  return text != nullptr && *text != '\0' ? text : nullptr;
}

int64_t variable(const char* name, int64_t otherwise, int64_t least) {
  const char* text = find_variable(name);
  if (text == nullptr) return otherwise;
  int64_t value = 0;
  const char* end = text + std::strlen(text);
  auto [parsed, failure] = std::from_chars(text, end, value);
  require_usage(failure == std::errc() && parsed == end && value >= least, "the variable ", name,
                " = \"", text, "\" must be a whole number of at least ", least);
  return value;
}

void check(const Processes& processes) {
  require_usage(processes.rank < processes.size, processes.source, ": process (RANK) ",
                processes.rank, " of ", processes.size, ": processes count from 0");
  require_usage(processes.local_rank < processes.local_size, processes.source,
                ": LOCAL_RANK = ", processes.local_rank,
                " with LOCAL_WORLD_SIZE = ", processes.local_size, ": processes count from 0");
  require_usage(processes.store_port >= 0 && processes.store_port < 65536, processes.source,
                ": there is no port ", processes.store_port);
}

// The variables torchrun gives its workers, and redco-lua --nproc too.
std::optional<Processes> find_torchrun() {
  if (find_variable("WORLD_SIZE") == nullptr && find_variable("RANK") == nullptr)
    return std::nullopt;
  for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"})
    require_usage(find_variable(name) != nullptr, "the variable ", name,
                  " is not set, but others of torchrun's are: RANK, WORLD_SIZE, MASTER_ADDR and "
                  "MASTER_PORT belong together");
  Processes found;
  found.source = "torchrun's variables";
  found.size = variable("WORLD_SIZE", 1, 1);
  found.rank = variable("RANK", 0, 0);
  found.local_size = variable("LOCAL_WORLD_SIZE", found.size, 1);
  found.local_rank = variable("LOCAL_RANK", found.rank, 0);
  found.store_address = find_variable("MASTER_ADDR");
  found.store_port = variable("MASTER_PORT", 0, 1);
  found.attempt = variable("TORCHELASTIC_RESTART_COUNT", 0, 0);
  const char* agent = find_variable("TORCHELASTIC_USE_AGENT_STORE");
  found.hosts_store = found.rank == 0 && (agent == nullptr || std::strcmp(agent, "True") != 0);
  check(found);
  return found;
}

// One process on each host.
std::optional<Processes> find_explicit(const ProcessOptions& options) {
  if (!options.n_processes) {
    require_usage(!options.process_id && !options.host0_address && !options.host0_port,
                  "process_id, host0_address and host0_port need n_processes beside them");
    return std::nullopt;
  }
  Processes found;
  found.source = "n_processes";
  found.size = *options.n_processes;
  require_usage(found.size > 0, "n_processes = ", found.size, " must be positive");
  require_usage(found.size == 1 || (options.process_id && options.host0_address),
                "n_processes = ", found.size,
                " needs process_id, different on each, and "
                "host0_address, where the others reach process 0");
  found.rank = options.process_id.value_or(0);
  require_usage(found.rank >= 0, "process_id = ", found.rank, " must not be negative");
  found.store_address = options.host0_address.value_or("");
  found.store_port = options.host0_port.value_or(default_port);
  found.hosts_store = found.rank == 0;
  check(found);
  return found;
}

}  // namespace

Processes find_processes(const ProcessOptions& options) {
  std::optional<Processes> given = find_explicit(options);
  std::optional<Processes> torchrun = find_torchrun();
  require_usage(
      !given || !torchrun || (given->size == torchrun->size && given->rank == torchrun->rank),
      "n_processes and process_id say process ", given ? given->rank : 0, " of ",
      given ? given->size : 0, ", torchrun's variables say ", torchrun ? torchrun->rank : 0, " of ",
      torchrun ? torchrun->size : 0,
      ": leave the options out where a launcher starts the processes");
  return torchrun ? *torchrun : given.value_or(Processes());
}

}  // namespace redco
