-- Trains the GPT of this folder as train.lua does, with a checkpoint after each step. In the first
-- attempt the process `rank` sends itself a signal in a phase of the third step, or of the
-- evaluation after the training. In the first `slow_attempts` each step takes `pause` seconds more,
-- so that there is time for what comes from outside.
local redco = require "redco"
local torch = redco.torch
local ffi = require "ffi"

ffi.cdef [[
int kill(int process, int signal);
int getpid(void);
struct timeval { long seconds, microseconds; };
int gettimeofday(struct timeval *now, void *zone);
int usleep(unsigned microseconds);
]]

local o = redco.options {
  workdir = "", phase = "", rank = 1, signal = 9, pause = 0.0, slow_attempts = 1,
  per_device_batch_size = 2,
}

local deployer = redco.Deployer {
  seed = 7, verbose = false, workdir = o.workdir .. "/gpt-float64-zero0",
}
local n_restarts = os.getenv "TORCHELASTIC_RESTART_COUNT" or os.getenv "SLURM_RESTART_COUNT"
n_restarts = tonumber(n_restarts or 0)
local is_victim = n_restarts == 0 and deployer.process_id == o.rank

-- Appends what happened, and when, to a file.
local function note(what)
  local now = ffi.new "struct timeval"
  ffi.C.gettimeofday(now, nil)
  local file = assert(io.open(o.workdir .. "/notes", "a"))
  file:write(("%s %.3f\n"):format(what, tonumber(now.seconds) + tonumber(now.microseconds) / 1e6))
  file:close()
end

local checkpoint, info = deployer:load_last_ckpt {}
if deployer.process_id == 0 then
  note("started at " .. (info and tostring(info.step) or "0"))
end

local calls = {}
local function reached(phase, call)
  calls[phase] = (calls[phase] or 0) + 1
  if not is_victim or phase ~= o.phase or calls[phase] ~= call then return end
  note "died"
  ffi.C.kill(ffi.C.getpid(), o.signal)
end

local task = require "gpt"(torch.Generator(5), {
  n_examples = 37, dtype = "float64", dropout = 0, recomputes = false,
})
local rate = redco.optim.linear_schedule { peak_value = 0.01, warmup_steps = 3, total_steps = 40 }

local function loss_fn(rng, state, params, batch, is_training)
  local phase = is_training and "forward" or "evaluation"
  return redco.checkpoint(function()
    reached(phase, 3)
    phase = "backward"  -- which runs this once more
    return task.loss_fn(rng, state, params, batch, is_training)
  end)
end

local trainer = redco.Trainer {
  deployer = deployer, loss_fn = loss_fn, compute_dtype = "float64",
  params = checkpoint and checkpoint.params
    or redco.tree.map(function(param) return param:to "float64" end, task.params),
  opt_state = checkpoint and checkpoint.opt_state, last_ckpt_info = info,
  collate_fn = function(examples)
    if n_restarts < o.slow_attempts then ffi.C.usleep(o.pause * 1e6) end
    reached("collate", 3)
    return task.collate_fn(examples)
  end,
  optimizer = redco.optim.chain {
    redco.optim.clip_by_global_norm(1),
    redco.optim.adamw {
      weight_decay = 0.1, mask = function(_, param) return param:dim() > 1 end,
      learning_rate = function(step)
        reached("update", 3)
        return rate(step)
      end,
    },
  },
}
trainer:fit {
  train_examples = task.examples, n_epochs = 4, global_batch_size = 8,
  per_device_batch_size = o.per_device_batch_size,
  save_ckpt_every_k_steps = 1, keep_last_k_ckpts = 2, save_last_ckpt = true,
  save_in_background = false,
}
trainer:eval_loss { examples = task.examples, per_device_batch_size = o.per_device_batch_size }
