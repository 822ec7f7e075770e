// Reads the variables of torchrun, Open MPI, Slurm and MPICH that number processes.

#include "schedulers.h"

#include "../core/require_usage.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <sstream>
#include <string_view>

namespace redco::mesh {

namespace {

bool is_set(const char* name) { return find_variable(name) != nullptr; }

std::string text_of(const char* name) { return is_set(name) ? find_variable(name) : ""; }

// A port for the store of this job, below the range of ephemeral ports.
int64_t port_of(const std::string& job) {
  constexpr int64_t first = 10000, n = 20000;
  return first + int64_t(std::hash<std::string>()(job) % n);
}

// Process 0 opens the store: at the caller's address, else at this one.
void open_store(Processes& found, const ProcessOptions& stated, const std::string& address,
                const std::string& job) {
  found.store_address = stated.host0_address.value_or(address);
  found.store_port = stated.host0_port.value_or(port_of(job));
  found.run = job;
  found.hosts_store = found.rank == 0;
}

// --- torchrun: docs.pytorch.org/docs/stable/elastic/run.html, "Environment Variables"

bool in_torchrun() {
  if (!is_set("WORLD_SIZE") && !is_set("RANK")) return false;
  for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"})
    require_usage(is_set(name), "the variable ", name,
                  " is not set, but others of torchrun's are: RANK, WORLD_SIZE, MASTER_ADDR and "
                  "MASTER_PORT belong together");
  return true;
}

void complete_torchrun(Processes& found, const ProcessOptions&) {
  found.is_worker = true;
  found.store_address = text_of("MASTER_ADDR");
  found.store_port = variable("MASTER_PORT", 0, 1);
  found.run = text_of("TORCHELASTIC_RUN_ID");
  found.attempt = variable("TORCHELASTIC_RESTART_COUNT", 0, 0);
  // redco-lua's launcher hosts the run's store; torchrun hosts another store.
  bool has_launcher = is_set(launcher_store_variable);
  if (has_launcher) found.source = "the variables of redco-lua --nproc";
  found.hosts_store = found.rank == 0 && !has_launcher;
  found.is_announced = !has_launcher && text_of("TORCHELASTIC_USE_AGENT_STORE") == "True";
}

// --- Open MPI provides the address of mpirun, "1234.0;tcp://10.0.0.1,10.1.0.1:5000;tcp6://...". It
// is the host of process 0, unless mpirun runs on a host outside the job.

bool in_open_mpi() { return is_set("OMPI_COMM_WORLD_SIZE"); }

void complete_open_mpi(Processes& found, const ProcessOptions& stated) {
  constexpr std::string_view before = "tcp://";
  std::string mpirun = text_of("OMPI_MCA_orte_hnp_uri"), address = "127.0.0.1";
  if (found.local_size < found.size) {
    size_t from = mpirun.find(before);
    bool is_elsewhere = found.rank == 0 && mpirun != text_of("OMPI_MCA_orte_local_daemon_uri");
    address = is_elsewhere || from == std::string::npos ? "" : mpirun.substr(from + before.size());
    address = address.substr(0, address.find_first_of(",:;"));
  }
  open_store(found, stated, address, text_of("OMPI_MCA_ess_base_jobid"));
}

// --- Slurm: slurm.schedmd.com/srun.html, "OUTPUT ENVIRONMENT VARIABLES"

// Counts only processes that srun started. The script of a batch job and the shell of salloc have
// most of the variables too, but their step ids are at least this.
constexpr int64_t first_special_step = 0xfffffff0;

bool in_slurm_step() {
  if (!is_set("SLURM_PROCID")) return false;
  if (variable("SLURM_STEP_ID", first_special_step, 0) >= first_special_step) return false;
  // If a job calls mpirun, srun starts only one process per host, which starts the others.
  return !is_set("PMI_SIZE") || text_of("PMI_SIZE") == text_of("SLURM_STEP_NUM_TASKS");
}

// The first host of a list: "node01" of "node[01-03,7],login".
std::string first_host(const std::string& list) {
  std::string host;
  for (size_t i = 0; i < list.size() && list[i] != ','; ++i) {
    if (list[i] != '[') {
      host += list[i];
      continue;
    }
    size_t end = std::min(list.find(']', i), list.size());
    host += list.substr(i + 1, std::min(list.find_first_of("-,]", i), end) - i - 1);
    i = end;
  }
  return host;
}

// The number at `index` of a list: "2(x3),1" is 2, 2, 2, 1. 0 if out of range.
int64_t repeated_number(const std::string& list, int64_t index) {
  std::istringstream items(list);
  for (std::string item; std::getline(items, item, ',');) {
    int64_t value = 0, times = 1;
    std::sscanf(item.c_str(), "%ld(x%ld)", &value, &times);
    if (index < times) return value;
    index -= times;
  }
  return 0;
}

void complete_slurm(Processes& found, const ProcessOptions& stated) {
  found.local_size =
      repeated_number(text_of("SLURM_STEP_TASKS_PER_NODE"), variable("SLURM_NODEID", 0, 0));
  open_store(found, stated, first_host(text_of("SLURM_STEP_NODELIST")),
             text_of("SLURM_JOB_ID") + "." + text_of("SLURM_STEP_ID"));
}

// --- MPICH, Intel MPI and others whose mpirun is Hydra. It does not provide the first host.

bool in_hydra() { return is_set("PMI_SIZE") && is_set("PMI_RANK"); }

void complete_hydra(Processes& found, const ProcessOptions& stated) {
  open_store(found, stated, found.local_size == found.size ? "127.0.0.1" : "", "");
}

// A launcher of processes and the names of its variables.
struct Scheduler {
  const char* name;
  bool (*is_here)();
  const char *size, *rank, *local_size, *local_rank;
  // Sets the store's address, and the fields that no variable gives.
  void (*complete)(Processes&, const ProcessOptions& stated);
};

// If schedulers are nested, the inner one comes first.
constexpr Scheduler schedulers[] = {
    {"torchrun's variables", in_torchrun, "WORLD_SIZE", "RANK", "LOCAL_WORLD_SIZE", "LOCAL_RANK",
     complete_torchrun},
    {"Open MPI's variables", in_open_mpi, "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", complete_open_mpi},
    {"Slurm's variables", in_slurm_step, "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "",
     "SLURM_LOCALID", complete_slurm},
    {"MPI's variables", in_hydra, "PMI_SIZE", "PMI_RANK", "MPI_LOCALNRANKS", "MPI_LOCALRANKID",
     complete_hydra},
};

}  // namespace

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

std::optional<Processes> find_scheduler(const ProcessOptions& stated) {
  for (const Scheduler& each : schedulers) {
    if (!each.is_here()) continue;
    Processes found;
    found.source = each.name;
    found.size = variable(each.size, 1, 1);
    found.rank = variable(each.rank, 0, 0);
    found.local_size = variable(each.local_size, found.size, 1);
    found.local_rank = variable(each.local_rank, found.rank, 0);
    each.complete(found, stated);
    return found;
  }
  return std::nullopt;
}

}  // namespace redco::mesh
