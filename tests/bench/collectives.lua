-- Microseconds of collectives between processes of one host, medians of rounds. One JSON line.
--     redco-lua --nproc 2 collectives.lua
-- The peer is peer_collectives.py.
local clock = require "clock"
local redco = require "redco"
local torch = redco.torch

local o = redco.options { rounds = 15, calls = 20, kib = "1 64 512 2048" }
torch.set_num_threads(1)

local deployer = redco.Deployer { seed = 1, n_model_shards = 1, verbose = false }
local n = deployer.mesh.dp

local function microseconds(x, to)
  local times = {}
  for round = 0, o.rounds do
    local start = clock.now()
    for _ = 1, o.calls do redco.shard(x, to) end
    if round > 0 then times[round] = (clock.now() - start) / o.calls * 1e6 end
  end
  return math.floor(clock.median(times))
end

local figures = {}
for kib in o.kib:gmatch "%d+" do
  local numel = tonumber(kib) * 256
  figures[#figures + 1] = ('"all_reduce %s KiB": %d, "all_gather %s KiB": %d'):format(
    kib, microseconds(redco.shard(torch.ones(numel), { dp = "partial" }), {}),
    kib, microseconds(redco.shard(torch.ones(n, numel), { dp = 0 }), {}))
end
if deployer.process_id == 0 then
  print(('{"n_processes": %d, %s}'):format(n, table.concat(figures, ", ")))
end
