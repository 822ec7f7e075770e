-- Microseconds of collectives between processes of one host, medians of rounds. With --products=N
-- each process multiplies N matrices before each, as in a step. One JSON line.
--     redco-lua --nproc 2 collectives.lua [--dtype=bfloat16]
-- The peer is peer_collectives.py.
local clock = require "clock"
local redco = require "redco"
local torch = redco.torch

local o = redco.options { rounds = 15, calls = 20, kib = "1 64 512 2048", products = 0,
  dtype = "float32" }
torch.set_num_threads(1)

local deployer = redco.Deployer { seed = 1, n_model_shards = 1, verbose = false }
local n = deployer.mesh.dp

local element_size = assert(({ float32 = 4, bfloat16 = 2, float16 = 2 })[o.dtype], o.dtype)
local a, b = torch.ones(512, 512), torch.ones(512, 512)

local function microseconds(x, to)
  local times = {}
  for round = 0, o.rounds do
    local sum = 0
    for _ = 1, o.calls do
      for _ = 1, o.products do a:mm(b) end
      local start = clock.now()
      redco.shard(x, to)
      sum = sum + clock.now() - start
    end
    if round > 0 then times[round] = sum / o.calls * 1e6 end
  end
  return math.floor(clock.median(times))
end

local figures = {}
for kib in o.kib:gmatch "%d+" do
  local ones = torch.ones(n, tonumber(kib) * 1024 / element_size, { dtype = o.dtype })
  figures[#figures + 1] = ('"all_reduce %s KiB": %d, "all_gather %s KiB": %d'):format(
    kib, microseconds(redco.shard(ones[0], { dp = "partial" }), {}),
    kib, microseconds(redco.shard(ones, { dp = 0 }), {}))
end
if deployer.process_id == 0 then
  print(('{"n_processes": %d, %s}'):format(n, table.concat(figures, ", ")))
end
