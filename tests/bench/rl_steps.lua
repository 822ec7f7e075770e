-- Environment steps a second beside gymnasium, in interleaved runs: random actions in 64 copies of
-- CartPole, and whole trainings by PPO: ours is examples/reinforcement_learning/ppo.lua with its
-- start, gymnasium's a loop like CleanRL's. One JSON line. --python= names a Python with gymnasium
-- and torch.
local clock = require "clock"
local redco = require "redco"
local torch = redco.torch

local o = redco.options { python = "python3", redco_lua = "build/release/redco-lua", runs = 5,
  threads = 1, our_steps = 262144, peer_steps = 8192, random_steps = 65536 }
torch.set_num_threads(o.threads)

local folder = os.tmpname() .. ".d"
assert(os.execute(("mkdir -p %s && mkfifo %s/questions"):format(folder, folder)) == 0)
local answers = assert(io.popen(("%s tests/bench/peer_rl.py %d < %s/questions"):format(o.python,
  o.threads, folder)))
local ask = assert(io.open(folder .. "/questions", "w"))

-- Steps a second of the peer.
local function peer(kind, n_steps)
  ask:write(("%s %d\n"):format(kind, n_steps))
  ask:flush()
  return n_steps / assert(tonumber(answers:read "*l"), "the peer ended")
end

local actions = {}
for i = 1, 64 do
  actions[i] = torch.randint(0, 2, { 64 }, { generator = torch.Generator(i) })
end
local function play()
  local env = redco.rl.environment("CartPole-v1", { n_envs = 64, seed = 1 })
  local start = clock.now()
  for t = 1, o.random_steps / 64 do env:step(actions[t % 64 + 1]) end
  return o.random_steps / (clock.now() - start)
end

local function train()
  local start = clock.now()
  assert(os.execute(("OMP_NUM_THREADS=%d %s examples/reinforcement_learning/ppo.lua --workdir=%s/w "
    .. "--total-steps=%d >%s/output 2>&1 && rm -r %s/w"):format(o.threads, o.redco_lua, folder,
    o.our_steps, folder, folder)) == 0, "ppo.lua failed")
  return o.our_steps / (clock.now() - start)
end

peer("ppo", 1024)
local found = { random = {}, sync = {}, vector = {}, ppo = {}, peer_ppo = {}, ratio = {},
  random_ratio = {} }
for run = 1, o.runs do
  found.random[run], found.sync[run] = play(), peer("sync", o.random_steps)
  found.vector[run] = peer("vector", o.random_steps)
  found.ppo[run], found.peer_ppo[run] = train(), peer("ppo", o.peer_steps)
  found.ratio[run] = found.ppo[run] / found.peer_ppo[run]
  found.random_ratio[run] = found.random[run] / found.sync[run]
end
local m = {}
for name, values in pairs(found) do m[name] = clock.median(values) end
print(('{"name": "rl_steps", "ppo_steps_per_s": %.0f, "peer_ppo_steps_per_s": %.0f, "ratio": %.2f, '
  .. '"random_steps_per_s": %.0f, "sync_steps_per_s": %.0f, "vector_steps_per_s": %.0f, '
  .. '"random_ratio": %.2f}'):format(m.ppo, m.peer_ppo, m.ratio, m.random, m.sync, m.vector,
  m.random_ratio))
ask:close()
answers:close()
os.execute("rm -r " .. folder)
