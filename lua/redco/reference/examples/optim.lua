--- redco.optim
local optim = redco.optim
local schedule = optim.cosine_schedule {
  peak_value = 3e-4, warmup_steps = 100, total_steps = 1000,
}
local optimizer = optim.chain {  -- for redco.Trainer
  optim.clip_by_global_norm(1), optim.adamw { learning_rate = schedule },
}

--- redco.optim.adafactor
local optimizer = redco.optim.adafactor { learning_rate = 1e-2 }

--- redco.optim.adam
local optimizer = redco.optim.adam {
  learning_rate = 1e-3, betas = { 0.9, 0.98 }, eps = 1e-9,
}

--- redco.optim.adamw
local function is_matrix(name, param) return param.ndim >= 2 end
local optimizer = redco.optim.adamw {  -- biases and norms do not decay
  learning_rate = 3e-4, weight_decay = 0.1, mask = is_matrix,
}

--- redco.optim.chain
local optimizer = redco.optim.chain {
  redco.optim.clip_by_global_norm(1),
  redco.optim.adamw { learning_rate = 3e-4 },
}

--- redco.optim.clip_by_global_norm
local optimizer = redco.optim.chain {
  redco.optim.clip_by_global_norm(1),
  redco.optim.sgd { learning_rate = 0.1 },
}

--- redco.optim.cosine_schedule
local schedule = redco.optim.cosine_schedule {
  peak_value = 3e-4, end_value = 3e-5, warmup_steps = 100, total_steps = 1000,
}
print(schedule(0), schedule(100), schedule(550), schedule(1000))
--> 0  0.0003  0.000165  3e-05
local optimizer = redco.optim.adamw { learning_rate = schedule }

--- redco.optim.freeze
local adamw = redco.optim.adamw { learning_rate = 1e-4 }
local optimizer = redco.optim.freeze(adamw, function(name)
  return name:find "^encoder%." ~= nil  -- train all but the encoder
end)

--- redco.optim.linear_schedule
local schedule = redco.optim.linear_schedule {
  peak_value = 3e-4, warmup_steps = 100, total_steps = 1000,
}
print(schedule(0), schedule(50), schedule(100), schedule(1000))
--> 0  0.00015  0.0003  0

--- redco.optim.lion
local optimizer = redco.optim.lion { learning_rate = 3e-5, weight_decay = 1 }

--- redco.optim.sgd
local optimizer = redco.optim.sgd {
  learning_rate = 0.1, momentum = 0.9, nesterov = true, weight_decay = 5e-4,
}
