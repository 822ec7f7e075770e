-- To load its part of a model, a process needs the memory of that part, and about as many pages of
-- the mapped file. Checks this.
local checks = require "redco.models.checks"
local ffi = require "ffi"
local process_memory = require "process_memory"
local redco = require "redco"
local testing = require "testing"

local torch = redco.torch

ffi.cdef [[
  typedef struct { unsigned long soft, hard; } redco_rlimit;
  int getrlimit(int resource, redco_rlimit *limit);
  int setrlimit(int resource, const redco_rlimit *limit);
]]
local RLIMIT_DATA = 2

local folder = arg[1] .. "/large_llama"

local deployer = redco.Deployer { seed = 1, n_model_shards = 2, verbose = false }

local config = {
  model_type = "llama", vocab_size = 6000, hidden_size = 1024, intermediate_size = 3072,
  num_hidden_layers = 2, num_attention_heads = 8, num_key_value_heads = 4,
}

local function laid_out(options)
  local model = redco.models.from_pretrained(folder, options)
  local trainer = redco.Trainer {
    deployer = deployer, params = model.params,
    collate_fn = function(rows)
      local ids = torch.stack(rows)
      return { input_ids = ids, labels = ids }
    end,
    loss_fn = function(_, _, params, batch) return model.loss(params, batch) end,
    optimizer = redco.optim.sgd { learning_rate = 0.1 },
  }
  local rows = { torch.arange(8), torch.arange(8) }
  trainer:setup_running_step { examples = rows, per_device_batch_size = 2 }
  return trainer, model
end

redco.models.from_config(config, { generator = torch.Generator(1) }).save_pretrained(folder)
local whole = 0
for _, tensor in pairs(torch.load(folder .. "/model.safetensors")) do
  whole = whole + tensor:numel() * 4
end
collectgarbage()
collectgarbage()

-- Calls a function that may take so many bytes more than are taken now.
local function within(bytes, call)
  local before, limit = ffi.new "redco_rlimit", ffi.new "redco_rlimit"
  assert(ffi.C.getrlimit(RLIMIT_DATA, before) == 0)
  limit.soft, limit.hard = process_memory.bytes("status", "VmData") + bytes, before.hard
  assert(ffi.C.setrlimit(RLIMIT_DATA, limit) == 0)
  local ok, result = pcall(call)
  assert(ffi.C.setrlimit(RLIMIT_DATA, before) == 0)
  return ok and result or error(result, 0)
end

-- The bytes in use; what malloc keeps of freed memory does not count.
local function in_use()
  process_memory.release()
  return process_memory.bytes("smaps_rollup", "Anonymous")
end

testing.test("low_memory: a process's part and no more, at any moment", function()
  local half = 0.51 * whole
  -- The program's own: Lua, caches of plans.
  local slack = 2 ^ 23
  local function load() return laid_out { low_memory = true } end
  local before = in_use()
  -- A sanitizer keeps freed memory for a while. The mapped file counts as data, touched or not.
  local trainer = os.getenv "REDCO_SANITIZE" == "1" and load()
    or within(whole + half + slack, load)
  local taken = in_use() - before
  local params = trainer:memory().params
  assert(params.whole == whole and params.here < half)
  assert(os.getenv "REDCO_SANITIZE" == "1" or taken < params.here + slack,
    ("%.0f bytes, of which %.0f are parameters"):format(taken, params.here))
  local mapped = process_memory.bytes("smaps", "Rss", folder)
  -- Rows are pages of their own; the parts of columns share theirs.
  assert(mapped < 0.75 * params.whole, ("%.2f of the file was read"):format(mapped / params.whole))
end)

testing.test("NaN in the part of one process is an error of all", function()
  local weight = torch.zeros { 128, 64 }
  for _, value in ipairs { 0 / 0, math.huge, -math.huge } do
    for _, row in ipairs { 0, 127 } do
      local broken = redco.parameter(weight.shape):copy_(weight:index_fill(0, torch.tensor { row },
        value))
      local ok, message = pcall(checks.finite, "a file", { "w" }, { w = broken })
      local found = value ~= value and "the weight w has NaN" or "the weight w has infinity"
      assert(not ok and tostring(message):find(found, 1, true), message)
    end
  end
end)

testing.test("the parameters are the same in memory or mapped", function()
  local a, b = laid_out { low_memory = true }, laid_out {}
  redco.tree.map(function(x, y)
    assert(torch.equal(x:full(), y:full()))
    return x
  end, a.params, b.params)
end)

testing.finish()
