--- redco.optim
local optim = redco.optim
local schedule = optim.cosine_schedule {
  peak_value = 3e-4, warmup_steps = 100, total_steps = 1000,
}
local optimizer = optim.chain {  -- for redco.Trainer
  optim.clip_by_global_norm(1), optim.adamw { learning_rate = schedule },
}

--- Optimizer:averages (after Optimizer:init)
print(optimizer:averages(state, params).w)  --> tensor([0., 0.])

--- Optimizer:init
local optimizer = redco.optim.chain {
  redco.optim.adamw { learning_rate = 0.1 }, redco.optim.ema { decay = 0.9 },
}
local params = { w = torch.zeros { 2 } }
local state = optimizer:init(params)
print(state.step)  --> 0

--- Optimizer:learning_rate (after Optimizer:init)
print(optimizer:learning_rate(state))  --> 0.1

--- Optimizer:observe (after Optimizer:init)
optimizer:observe(state, { loss = 0.5 })

--- Optimizer:step (after Optimizer:init)
local function loss_of(p) return (p.w - 1):square():sum() end
for _ = 1, 100 do
  optimizer:step(redco.grad(loss_of)(params), state, params)
end
print(state.step, loss_of(params):item() < 0.01)  --> 100  true

--- Optimizer:update (after Optimizer:init)
local grads = { w = torch.ones { 2 } }
local updates, next_state = optimizer:update(grads, state, params)
params = redco.tree.map(torch.add, params, updates)
print(params.w, state.step, next_state.step)
--> tensor([-0.1000, -0.1000])  0  1

--- redco.optim.adafactor
local optimizer = redco.optim.adafactor { learning_rate = 1e-2 }

--- redco.optim.adagrad
local optimizer = redco.optim.adagrad { learning_rate = 0.1 }

--- redco.optim.adam
local optimizer = redco.optim.adam {
  learning_rate = 1e-3, betas = { 0.9, 0.98 }, eps = 1e-9,
}

--- redco.optim.adamw
local function is_matrix(name, param) return param.ndim >= 2 end
local optimizer = redco.optim.adamw {  -- biases and norms do not decay
  learning_rate = 3e-4, weight_decay = 0.1, mask = is_matrix,
}

--- redco.optim.adamw8bit
local optimizer = redco.optim.adamw8bit {
  learning_rate = 3e-4, weight_decay = 0.1, mask = "*.weight",
}

--- redco.optim.add_decayed_weights
local optimizer = redco.optim.chain {
  redco.optim.add_decayed_weights { weight_decay = 0.1, mask = "*.weight" },
  redco.optim.rmsprop { learning_rate = 1e-3 },
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

--- redco.optim.clip_by_value
local optimizer = redco.optim.chain {
  redco.optim.clip_by_value(0.5),
  redco.optim.sgd { learning_rate = 0.1 },
}

--- redco.optim.constant_schedule
local schedule = redco.optim.constant_schedule {
  peak_value = 3e-4, warmup_steps = 100,
}
print(schedule(0), schedule(50), schedule(100), schedule(1000))
--> 0  0.00015  0.0003  0.0003

--- redco.optim.cosine_schedule
local schedule = redco.optim.cosine_schedule {
  peak_value = 3e-4, end_value = 3e-5, warmup_steps = 100, total_steps = 1000,
}
print(schedule(0), schedule(100), schedule(550), schedule(1000))
--> 0  0.0003  0.000165  3e-05
local optimizer = redco.optim.adamw { learning_rate = schedule }

--- redco.optim.ema
local optimizer = redco.optim.chain {
  redco.optim.adamw { learning_rate = 1e-3 },
  redco.optim.ema { decay = 0.999 },
}
local params = { w = torch.zeros { 2 } }
local state = optimizer:init(params)
optimizer:step({ w = torch.ones { 2 } }, state, params)
print(optimizer:averages(state, params).w)  --> tensor([...])

--- redco.optim.exponential_schedule
local schedule = redco.optim.exponential_schedule {
  peak_value = 1e-3, decay_rate = 0.5, decay_steps = 100,
}
print(schedule(0), schedule(100), schedule(200))  --> 0.001  0.0005  0.00025

--- redco.optim.freeze
local adamw = redco.optim.adamw { learning_rate = 1e-4 }
local optimizer = redco.optim.freeze(adamw, function(name)
  return name:find "^encoder%." ~= nil  -- train all but the encoder
end)

--- redco.optim.lamb
local optimizer = redco.optim.lamb {
  learning_rate = 2e-3, weight_decay = 0.01, mask = "*.weight",
}

--- redco.optim.linear_schedule
local schedule = redco.optim.linear_schedule {
  peak_value = 3e-4, warmup_steps = 100, total_steps = 1000,
}
print(schedule(0), schedule(50), schedule(100), schedule(1000))
--> 0  0.00015  0.0003  0

--- redco.optim.lion
local optimizer = redco.optim.lion { learning_rate = 3e-5, weight_decay = 1 }

--- redco.optim.lookahead
local optimizer = redco.optim.chain {
  redco.optim.adamw { learning_rate = 1e-3 },
  redco.optim.lookahead { every = 5, alpha = 0.5 },
}

--- redco.optim.multi
local optimizer = redco.optim.multi {
  { "embedding.*", "frozen" },
  { { "bias", "norm.weight" }, redco.optim.sgd { learning_rate = 0.1 } },
  { "*", redco.optim.adamw { learning_rate = 3e-4 } },
}

--- redco.optim.muon
local adamw = redco.optim.adamw { learning_rate = 3e-4 }
local function is_matrix(name, param)
  return param.ndim == 2 and not name:find "embed"
end
local optimizer = redco.optim.multi {
  { is_matrix, redco.optim.muon { learning_rate = 0.02 } }, { "*", adamw },
}

--- redco.optim.on_plateau
local rate = redco.optim.on_plateau { value = 0.1, patience = 0 }
local optimizer = redco.optim.sgd { learning_rate = rate }
local state = optimizer:init { w = torch.zeros { 2 } }
for _, loss in ipairs { 3, 2, 2 } do
  optimizer:observe(state, { loss = loss })
end
print(optimizer:learning_rate(state))  --> 0.01

--- redco.optim.one_cycle_schedule
local schedule = redco.optim.one_cycle_schedule {
  peak_value = 0.1, total_steps = 100,
}
print(schedule(0), schedule(29))  --> 0.004  0.1

--- redco.optim.piecewise_schedule
local schedule = redco.optim.piecewise_schedule {
  values = { 0.1, 0.01, 0.001 }, boundaries = { 100, 200 },
}
print(schedule(99), schedule(100), schedule(200))  --> 0.1  0.01  0.001

--- redco.optim.polynomial_schedule
local schedule = redco.optim.polynomial_schedule {
  peak_value = 1e-3, power = 2, total_steps = 1000,
}
print(schedule(0), schedule(500), schedule(1000))  --> 0.001  0.00025  0

--- redco.optim.rmsprop
local optimizer = redco.optim.rmsprop {
  learning_rate = 1e-3, alpha = 0.9, momentum = 0.9,
}

--- redco.optim.sgd
local optimizer = redco.optim.sgd {
  learning_rate = 0.1, momentum = 0.9, nesterov = true, weight_decay = 5e-4,
}

--- redco.optim.wsd_schedule
local schedule = redco.optim.wsd_schedule {
  peak_value = 1e-3, warmup_steps = 100, decay_steps = 200,
  total_steps = 1000,
}
print(schedule(100), schedule(800), schedule(900), schedule(1000))
--> 0.001  0.001  0.0005  0
