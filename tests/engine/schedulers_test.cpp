// Where processes find themselves, by what the programs that start them say.
#include <redco/error.h>
#include <redco/mesh.h>

#include <doctest/doctest.h>

#include <cstdlib>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

using redco::find_processes;
using redco::Processes;

namespace {

// Variables that are set as long as it lives.
class Variables {
 public:
  Variables(std::initializer_list<std::pair<const char*, const char*>> variables) {
    for (const auto& [name, value] : variables) set(name, value);
  }
  ~Variables() {
    for (const auto& name : names_) unsetenv(name.c_str());
  }
  void set(const std::string& name, const std::string& value) {
    names_.push_back(name);
    setenv(name.c_str(), value.c_str(), 1);
  }

 private:
  std::vector<std::string> names_;
};

void check_usage(const redco::ProcessOptions& options, const std::vector<std::string>& parts) {
  for (const auto& part : parts)
    CHECK_THROWS_WITH_AS(find_processes(options), doctest::Contains(part.c_str()),
                         redco::UsageError);
}

void check_place(const Processes& found, int64_t rank, int64_t size, int64_t local_rank,
                 int64_t local_size, const std::string& address) {
  CHECK(found.rank == rank);
  CHECK(found.size == size);
  CHECK(found.local_rank == local_rank);
  CHECK(found.local_size == local_size);
  CHECK(found.store_address == address);
  CHECK(found.hosts_store == (rank == 0));
}

}  // namespace

TEST_CASE("alone") {
  Processes one = find_processes();
  CHECK(one.size == 1);
  CHECK(one.store_address.empty());
  CHECK(one.source == "one process");
}

TEST_CASE("options") {
  Processes second = find_processes(
      {.n_processes = 2, .process_id = 1, .host0_address = "10.0.0.1", .host0_port = 7});
  check_place(second, 1, 2, 0, 1, "10.0.0.1");
  CHECK(second.store_port == 7);
  CHECK(find_processes({.n_processes = 2, .process_id = 0, .host0_address = "h"}).hosts_store);
  CHECK(find_processes({.n_processes = 1}).size == 1);
  check_usage({.n_processes = 2}, {"process_id"});
  CHECK(find_processes({.n_processes = 2, .process_id = 1}).store_address.empty());
  CHECK_THROWS_WITH_AS(
      redco::Mesh::make({.processes = find_processes({.n_processes = 2, .process_id = 1})}),
      doctest::Contains("do not tell where process 0 is: host0_address"), redco::UsageError);
  check_usage({.n_processes = 0}, {"n_processes = 0"});
  check_usage({.n_processes = 2, .process_id = 2, .host0_address = "h"}, {"count from 0"});
  check_usage({.n_processes = 2, .process_id = -1, .host0_address = "h"}, {"negative"});
  check_usage({.n_processes = 2, .process_id = 1, .host0_address = "h", .host0_port = 99999},
              {"port 99999"});
  check_usage({.process_id = 1}, {"process_id (--process-id, REDCO_PROCESS_ID) needs n_processes"});
  check_usage({.host0_address = "h"}, {"n_processes (--n-processes"});
}

TEST_CASE("the address of host 0 may have the brackets of a URL, and is a name or an address") {
  auto address_of = [](const char* text) {
    return find_processes({.n_processes = 2, .process_id = 1, .host0_address = text}).store_address;
  };
  CHECK(address_of("[::1]") == "::1");
  CHECK(address_of("[fd77::1]") == "fd77::1");
  CHECK(address_of("fd77::1") == "fd77::1");
  CHECK(address_of("node-1.example") == "node-1.example");
  for (const char* text : {"node1:29500", "[::1]:29500", "10.0.0.1:29500", "http://node1", "[::1",
                           "[node1]:1", "node 1", "::x"})
    check_usage({.n_processes = 2, .process_id = 1, .host0_address = text},
                {std::string("\"") + text + "\", is neither a name nor an address", "host0_port"});
}

TEST_CASE("variables of a scheduler that has none of its own") {
  Variables variables{{"REDCO_N_PROCESSES", "3"},
                      {"REDCO_PROCESS_ID", "2"},
                      {"REDCO_HOST0_ADDRESS", "fd77::1"},
                      {"REDCO_HOST0_PORT", "2222"}};
  Processes last = find_processes();
  check_place(last, 2, 3, 0, 1, "fd77::1");
  CHECK(last.store_port == 2222);
  CHECK(find_processes({.host0_address = "10.0.0.9"}).store_address == "10.0.0.9");
  CHECK(find_processes({.n_processes = 3, .process_id = 2}).store_address == "fd77::1");
  check_usage({.n_processes = 2, .process_id = 1},
              {"process 1 of 2", "the options", "process 2 of 3", "REDCO_N_PROCESSES"});
  variables.set("REDCO_PROCESS_ID", "x");
  check_usage({}, {"REDCO_PROCESS_ID = \"x\""});
  variables.set("REDCO_PROCESS_ID", "2");
  for (const char* port : {"0", "65536"}) {
    variables.set("REDCO_HOST0_PORT", port);
    check_usage({}, {"there is no port " + std::string(port), "--host0-port"});
  }
}

TEST_CASE("torchrun") {
  Variables variables{{"WORLD_SIZE", "4"}};
  check_usage({}, {"RANK"});
  variables.set("RANK", "3");
  variables.set("MASTER_ADDR", "node7");
  variables.set("MASTER_PORT", "29500");
  variables.set("LOCAL_RANK", "1");
  variables.set("LOCAL_WORLD_SIZE", "2");
  variables.set("TORCHELASTIC_RESTART_COUNT", "2");
  check_place(find_processes(), 3, 4, 1, 2, "node7");
  CHECK(find_processes().attempt == 2);
  CHECK(find_processes().source == "torchrun's variables");
  // Its store is there already.
  CHECK(find_processes({.n_processes = 4, .process_id = 3, .host0_address = "x"}).store_address ==
        "node7");
  check_usage({.n_processes = 2, .process_id = 1, .host0_address = "x"},
              {"process 1 of 2", "process 3 of 4", "torchrun's variables", "leave"});
  {
    Variables more{{"REDCO_N_PROCESSES", "4"}, {"REDCO_PROCESS_ID", "1"}};
    check_usage({}, {"process 1 of 4", "REDCO_N_PROCESSES", "torchrun's variables"});
  }
  variables.set("RANK", "0");
  CHECK(find_processes().hosts_store);
  CHECK_FALSE(find_processes().is_announced);
  variables.set("TORCHELASTIC_USE_AGENT_STORE", "True");
  CHECK(find_processes().hosts_store);
  CHECK(find_processes().is_announced);
  variables.set("REDCO_LAUNCHER_STORE", "True");
  CHECK_FALSE(find_processes().hosts_store);
  CHECK_FALSE(find_processes().is_announced);
  for (const char* wrong : {"4", "-1", "x", "1x"}) {
    variables.set("RANK", wrong);
    check_usage({}, {std::string(wrong) == "4" ? "process 4 of 4" : "RANK"});
  }
}

TEST_CASE("a Slurm step") {
  Variables variables{{"SLURM_JOB_ID", "123"},
                      {"SLURM_PROCID", "2"},
                      {"SLURM_NTASKS", "5"},
                      {"SLURM_LOCALID", "0"},
                      {"SLURM_NODEID", "1"},
                      {"SLURM_STEP_NUM_TASKS", "5"},
                      {"SLURM_STEP_TASKS_PER_NODE", "2(x2),1"},
                      {"SLURM_STEP_NODELIST", "node[08-10]"}};
  CHECK(find_processes().size == 1);  // a batch job's script
  for (const char* special : {"4294967290", "4294967291", "4294967292"}) {
    variables.set("SLURM_STEP_ID", special);
    CHECK(find_processes().size == 1);
  }
  variables.set("SLURM_STEP_ID", "0");
  Processes found = find_processes();
  check_place(found, 2, 5, 0, 2, "node08");
  CHECK(found.source == "Slurm's variables");
  CHECK(found.store_port >= 10000);
  CHECK(found.store_port < 30000);
  CHECK(find_processes({.host0_port = 7}).store_port == 7);
  CHECK(find_processes({.host0_address = "ib0.node08"}).store_address == "ib0.node08");
  variables.set("SLURM_STEP_ID", "1");
  CHECK(find_processes().store_port != found.store_port);
  CHECK(find_processes().run != found.run);

  const std::pair<const char*, const char*> lists[] = {
      {"a", "a"},
      {"a,b", "a"},
      {"a[7,9-11]", "a7"},
      {"gpu-[001-128].hall2,x[1-2]", "gpu-001.hall2"},
      {"r[0-1]n[4-9]", "r0n4"},
      {"a[1", "a1"}};
  for (auto [list, first] : lists) {
    variables.set("SLURM_STEP_NODELIST", list);
    CHECK(find_processes().store_address == first);
  }
  const std::pair<const char*, int64_t> counts[] = {{"1,2,3", 2}, {"4(x2)", 4}, {"1,7(x9)", 7}};
  for (auto [list, second] : counts) {
    variables.set("SLURM_STEP_TASKS_PER_NODE", list);
    CHECK(find_processes().local_size == second);
  }
  variables.set("SLURM_STEP_TASKS_PER_NODE", "3");
  check_usage({}, {"Slurm's variables: process 0 of 0 on its host"});
}

TEST_CASE("Open MPI") {
  Variables variables(
      {{"OMPI_COMM_WORLD_SIZE", "4"},
       {"OMPI_COMM_WORLD_RANK", "3"},
       {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
       {"OMPI_COMM_WORLD_LOCAL_RANK", "3"},
       {"OMPI_MCA_ess_base_jobid", "2282946561"},
       {"OMPI_MCA_orte_hnp_uri", "2.0;tcp://10.0.0.1,10.1.0.1:58433;tcp6://[::1]:9"},
       {"OMPI_MCA_orte_local_daemon_uri", "2.1;tcp://10.0.0.2:52143"}});
  check_place(find_processes(), 3, 4, 3, 4, "127.0.0.1");
  variables.set("OMPI_COMM_WORLD_LOCAL_SIZE", "2");
  variables.set("OMPI_COMM_WORLD_LOCAL_RANK", "1");
  check_place(find_processes(), 3, 4, 1, 2, "10.0.0.1");
  // It started the step of Slurm that this is.
  Variables step{{"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "1"}, {"SLURM_STEP_NUM_TASKS", "2"}};
  check_place(find_processes(), 3, 4, 1, 2, "10.0.0.1");
  // Process 0 on another host than mpirun.
  variables.set("OMPI_COMM_WORLD_RANK", "0");
  CHECK(find_processes().store_address.empty());
  CHECK(find_processes({.host0_address = "h"}).store_address == "h");
  variables.set("OMPI_MCA_orte_local_daemon_uri", std::getenv("OMPI_MCA_orte_hnp_uri"));
  check_place(find_processes(), 0, 4, 1, 2, "10.0.0.1");
}

TEST_CASE("an mpirun of MPICH's kind") {
  Variables variables(
      {{"PMI_SIZE", "4"}, {"PMI_RANK", "2"}, {"MPI_LOCALNRANKS", "4"}, {"MPI_LOCALRANKID", "2"}});
  check_place(find_processes(), 2, 4, 2, 4, "127.0.0.1");
  variables.set("MPI_LOCALNRANKS", "2");
  variables.set("MPI_LOCALRANKID", "0");
  CHECK(find_processes().store_address.empty());
  check_place(find_processes({.host0_address = "h"}), 2, 4, 0, 2, "h");
  Variables step{{"SLURM_STEP_ID", "0"},           {"SLURM_PROCID", "2"},
                 {"SLURM_LOCALID", "0"},           {"SLURM_NODEID", "1"},
                 {"SLURM_STEP_NUM_TASKS", "4"},    {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"},
                 {"SLURM_STEP_NODELIST", "n[1-2]"}};
  check_place(find_processes(), 2, 4, 0, 2, "n1");  // srun --mpi=pmi2
  step.set("SLURM_STEP_NUM_TASKS", "2");            // mpirun in a job
  CHECK(find_processes().source == "MPI's variables");
}
