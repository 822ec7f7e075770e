-- Saving and loading the parameters of GPT-2 small with the states of AdamW, beside `cp` with a
-- sync of the same files and reading them, in turns. Each load and each reading is in a process of
-- its own, whose memory is new, and asked for in huge pages by both. A ratio above 1: faster.
local clock = require "clock"
local ffi = require "ffi"
local redco = require "redco"

local o = redco.options {
  folder = "/tmp/redco-bench-checkpoint", rounds = 7, threads = 2,
  only = "",  -- "load" or "read": does that and prints its seconds
}
local torch = redco.torch
torch.set_num_threads(o.threads)

local deployer = redco.Deployer { seed = 0, verbose = false }
local saved, copied = o.folder .. "/saved", o.folder .. "/copied"

local function shell(command) assert(os.execute(command) == 0, command) end

ffi.cdef [[
int open(const char* path, int flags, ...);
int close(int file);
long read(int file, void* to, size_t size);
int madvise(void* from, size_t size, int advice);
]]

local function read_plainly()
  local all = {}
  local pipe = assert(io.popen("ls '" .. saved .. "'"))
  for name in pipe:lines() do
    local path = saved .. "/" .. name
    local handle = assert(io.open(path, "rb"))
    local size = handle:seek "end"
    handle:close()
    local to = torch.empty({ size }, { dtype = "uint8" })
    local file, at = ffi.C.open(path, 0), ffi.cast("char*", to:data_ptr())
    local page = 2 ^ 12 - tonumber(ffi.cast("uintptr_t", at) % 2 ^ 12)
    ffi.C.madvise(at + page, size, 14)  -- MADV_HUGEPAGE
    for first = 0, size - 1, 2 ^ 22 do
      ffi.C.read(file, at + first, math.min(2 ^ 22, size - first))
    end
    ffi.C.close(file)
    all[name] = to
  end
  pipe:close()
  return all
end

local alone = {
  load = function() return deployer:load_ckpt { ckpt_dir = saved } end,
  read = read_plainly,
}
if alone[o.only] then
  local start = clock.now()
  local kept = alone[o.only]()
  print(clock.now() - start, kept)
  return
end

local program = io.popen("readlink /proc/$PPID/exe"):read()
local function seconds_alone(name)
  local pipe = assert(io.popen(("'%s' '%s' --only=%s --folder='%s' --threads=%d"):format(
    program, arg[0], name, o.folder, o.threads)))
  local seconds = tonumber(pipe:read "*a":match "^%S+")
  pipe:close()
  return assert(seconds, name .. " failed")
end

local model = redco.models.from_config {
  model_type = "gpt2", vocab_size = 50257, n_positions = 1024, n_embd = 768, n_layer = 12,
  n_head = 12,
}
local function zeros()
  return redco.tree.map(function(param) return torch.zeros_like(param):fill_(1) end, model.params)
end
local opt_state = { exp_avg = zeros(), exp_avg_sq = zeros() }
local what = {
  { "save", function()
    deployer:save_ckpt { ckpt_dir = saved, params = model.params, opt_state = opt_state }
  end },
  { "cp", function()
    shell(("cp -r '%s' '%s' && sync '%s'/* '%s'"):format(saved, copied, copied, o.folder))
  end },
  { "load", function() return seconds_alone "load" end },
  { "read", function() return seconds_alone "read" end },
}
local times = { save = {}, cp = {}, load = {}, read = {} }
for _ = 0, o.rounds do
  shell(("rm -rf '%s' && mkdir -p '%s'"):format(o.folder, o.folder))
  for _, each in ipairs(what) do
    collectgarbage()
    collectgarbage()
    local start = clock.now()
    local seconds = each[2]()
    table.insert(times[each[1]], seconds or clock.now() - start)
  end
end
shell(("rm -rf '%s'"):format(o.folder))

local bytes = 0
for _, param in pairs(model.params) do bytes = bytes + 3 * param:numel() * 4 end
local function rate(name) return bytes / clock.median(times[name]) / 1e9 end
local function ratio(ours, theirs)
  local ratios = {}
  for i, time in ipairs(times[ours]) do ratios[i] = times[theirs][i] / time end
  return clock.median(ratios)
end
local save_ratio, load_ratio = ratio("save", "cp"), ratio("load", "read")
print(('{"name": "checkpoint", "GB": %.3f, "save GB/s": %.2f, "cp and sync GB/s": %.2f, '
  .. '"save ratio": %.2f, "load GB/s": %.2f, "read GB/s": %.2f, "load ratio": %.2f}'):format(
  bytes / 1e9, rate "save", rate "cp", save_ratio, rate "load", rate "read", load_ratio))
