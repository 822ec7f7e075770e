-- A Slurm of two nodes, the two hosts, starts the processes.
local hosts = require "hosts"
local program = require "program"
local runs = require "runs"
local testing = require "testing"

hosts.need("slurmctld", "slurmd", "srun", "munged")

-- Its files are in /run, which the test has for itself.
assert(os.execute "mkdir -p -m 755 /run/slurm/state /run/slurm/host1 /run/slurm/host2" == 0)
local configuration = assert(io.open("/run/slurm/slurm.conf", "w"))
configuration:write [[
ClusterName=test
SlurmctldHost=host1
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=/run/slurm/munge,cred_expire=5
StateSaveLocation=/run/slurm/state
SlurmdSpoolDir=/run/slurm/%n
SlurmctldPidFile=/run/slurm/slurmctld.pid
SlurmdPidFile=/run/slurm/%n/pid
SlurmctldLogFile=/run/slurm/slurmctld.log
SlurmdLogFile=/run/slurm/%n/log
ProctrackType=proctrack/linuxproc
SlurmdParameters=config_overrides
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SchedulerParameters=sched_interval=1,batch_sched_delay=0
ReturnToService=2
NodeName=host1 NodeAddr=10.77.0.1 CPUs=4
NodeName=host2 NodeAddr=10.77.0.2 CPUs=4
PartitionName=all Nodes=host[1-2] Default=YES OverSubscribe=FORCE MaxTime=INFINITE State=UP
]]
configuration:close()

-- Runs a shell command on the first host; returns what came out.
local function shell(command)
  local code, out, err = program.shell(("export SLURM_CONF=/run/slurm/slurm.conf\n%s sh -c '%s'")
    :format(hosts.on(1), command))
  if code ~= 0 then error(("exit code %d of %s\n%s%s"):format(code, command, out, err), 2) end
  return out, err
end

local ok, reason = pcall(shell, ([[
set -e
cd /run/slurm
echo "CgroupPlugin=cgroup/v1" >cgroup.conf
( umask 077; head -c 1024 /dev/urandom >key )
munged --force --key-file=/run/slurm/key --socket=/run/slurm/munge --pid-file=/run/slurm/munge.pid \
  --log-file=/run/slurm/munge.log --seed-file=/run/slurm/munge.seed
slurmctld -c
%s slurmd -N host1
%s slurmd -N host2
for i in $(seq 100); do sinfo -h -o "%%D %%t" | grep -q "^2 idle" && exit 0; sleep 0.1; done
sinfo; cat slurmctld.log host*/log; exit 1]]):format(hosts.on(1), hosts.on(2)))
if not ok then
  io.stderr:write("skipped: no Slurm can be started here: ", reason, "\n")
  program.remove_folder()
  os.exit(77)
end

testing.test("a task on each of two nodes", function()
  shell('srun -N 2 -n 2 "$REDCO_LUA" ' .. runs.words(2, "tasks"))
  runs.expect_as_alone "tasks"
  local log = program.read(program.folder .. "/tasks/gpt-float64-zero0/log.txt")
  program.expect_has(log, "2 processes connected at host1:")
end)

testing.test("a launcher on each, which starts again after a death", function()
  local _, err = shell(('mkdir %s/launchers; srun -N 2 -n 2 "$REDCO_LUA" --nproc 2 ' ..
    "--max-restarts 1 %s --phase=backward"):format(program.folder,
    runs.words(4, "launchers", "death.lua")))
  runs.expect_as_alone "launchers"
  program.expect_has(err, "host 1 of 2, as Slurm's variables say, runs processes 2 to 3 of 4",
    "restart 1 of 1, with processes 2 to 3 of 4 on this host")
end)

testing.test("the script of a batch job is no task", function()
  local out = shell([[sbatch --wait -o /dev/stdout --wrap "$REDCO_LUA -e \"print(1)\"" ]])
  program.expect_has(out, "Submitted batch job")
end)

testing.test("a batch job that SIGUSR1 ends starts again, and finishes", function()
  local folder = program.folder .. "/again"
  local script = os.getenv "REDCO_SOURCE" .. "/examples/cluster/slurm.sbatch"
  shell(([[
mkdir %s
job=$(sbatch --parsable --cpus-per-task=1 --output=%s/out %s %s --pause=0.2)
for i in $(seq 100); do [ -e %s/notes ] && break; sleep 0.1; done
sleep 0.5
scancel --signal=USR1 $job
for i in $(seq 300); do
  scontrol show job $job | grep -q JobState=COMPLETED && exit 0
  sleep 0.1
done
scontrol show job $job; cat %s/out; exit 1]]):format(folder, folder, script,
    runs.words(4, "again", "death.lua"), folder, folder))
  local _, n = program.read(folder .. "/notes"):gsub("started", "")
  testing.expect_equal(n, 2)
  runs.expect_as_alone "again"
end)

program.remove_folder()
testing.finish()
