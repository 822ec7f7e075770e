-- MAML (arXiv 1703.03400): parameters from which a few steps of gradient descent learn a new task.
local redco = require "redco"
local torch, nn, tree = redco.torch, redco.nn, redco.tree

local o = redco.options {
  task = "glyphs",  -- glyphs: classify characters from one example of each; sines: draw a curve
  workdir = "workdir",
  resume = false,  -- continue from the newest checkpoint of workdir, if there is one
  seed = 42, n_model_shards = 1, zero = 0,
  ways = 5,  -- classes of a task of glyphs
  inner_steps = 1,
  first_order = false,  -- take the gradients of the inner steps as constants
  n_epochs = 5,  -- of 1600 tasks
  max_steps = 0,  -- more than 0 ends the run early
  global_batch_size = 16, per_device_batch_size = 16,
  learning_rate = 1e-3,
}

local deployer = redco.Deployer {
  seed = o.seed, n_model_shards = o.n_model_shards, zero = o.zero, workdir = o.workdir }
local new = { generator = deployer:gen_rng() }

-- Splits examples [n, 2 k, ...] in two halves: to learn from, and to test what was learned.
local function task_of(x, y)
  local function half(all, i) return all:chunk(2, 1)[i]:flatten(0, 1) end
  return { train = { x = half(x, 1), y = half(y, 1) }, test = { x = half(x, 2), y = half(y, 2) } }
end

-- The picture has a row for each character and a column for each font.
local sheet = redco.data.image(redco.script_folder() .. "data/glyphs.png"):select(0, 0)
local glyphs = 1 - sheet:float():view { -1, 20, sheet:size(1) / 20, 20 }:transpose(1, 2) / 255
local is_held_out = torch.arange(glyphs:size(0)):remainder(4):eq(0)

local kinds = {
  glyphs = {
    inner_learning_rate = 0.4, metric = "accuracy",
    draw = function(rng, is_training)
      local known = is_held_out:ne(is_training):nonzero():view { -1 }
      local classes = torch.randperm(known:numel(), { generator = rng }):narrow(0, 0, o.ways)
      local fonts = torch.rand({ o.ways, glyphs:size(1) }, { generator = rng }):argsort(1)
      local images = glyphs[{ known[classes]:unsqueeze(1), fonts:narrow(1, 0, 2) }]
      return task_of(images:unsqueeze(2), torch.arange(o.ways):unsqueeze(1):expand { o.ways, 2 })
    end,
    params = function()
      return { conv1 = nn.Conv2d(1, 16, 3, new), conv2 = nn.Conv2d(16, 32, 3, new),
        head = nn.MLP({ 32 * 5 * 5, 64, o.ways }, new) }
    end,
    apply = function(params, x)
      x = torch.max_pool2d(torch.relu(nn.conv2d(params.conv1, x, { padding = 1 })), 2)
      x = torch.max_pool2d(torch.relu(nn.conv2d(params.conv2, x, { padding = 1 })), 2)
      return nn.mlp(params.head, x:flatten(1))
    end,
    loss = function(output, y) return (nn.cross_entropy(output, y)) end,
    score = function(output, y) return output:argmax(-1):eq(y):float():mean() end,
  },
  sines = {  -- ten points each to learn from and to test
    inner_learning_rate = 0.01, metric = "error",
    draw = function(rng)
      local phase, amplitude, x = unpack(torch.rand({ 22 }, { generator = rng }):split { 1, 1, 20 })
      x = x:view { 1, 20, 1 } * 10 - 5
      return task_of(x, (x - phase * math.pi):sin() * (amplitude * 4.9 + 0.1))
    end,
    params = function() return nn.MLP({ 1, 40, 40, 1 }, new) end,
    apply = nn.mlp,
    loss = function(output, y) return (output - y):square():mean() end,
  },
}
local kind = kinds[o.task] or error("--task is glyphs or sines, got " .. o.task)

-- A task depends only on the seed, the epoch and its number.
local function tasks(n, is_training, epoch_idx)
  local rng = redco.Rng(o.seed):fold_in(epoch_idx)
  return redco.data.dataset(n, function(i) return kind.draw(rng:fold_in(i), is_training) end)
end

local function loss_of(params, half) return kind.loss(kind.apply(params, half.x), half.y) end

local function adapted(params, task, n_steps)
  for _ = 1, n_steps do
    params = tree.map(function(param, gradient)
      return param - kind.inner_learning_rate * (o.first_order and gradient:detach() or gradient)
    end, params, redco.grad(loss_of)(params, task.train))
  end
  return params
end

local function task_loss(params, task)
  return loss_of(adapted(params, task, o.inner_steps), task.test)
end

local function for_each_task(f) return redco.vmap(f, { in_dims = { false, 0 } }) end

local ckpt, info = unpack(o.resume and { deployer:load_last_ckpt() } or {})

local trainer = redco.Trainer {
  deployer = deployer, collate_fn = redco.data.default_collate,
  loss_fn = function(rng, state, params, batch)
    return for_each_task(task_loss)(params, batch):mean()
  end,
  params = ckpt and ckpt.params or kind.params(),
  opt_state = ckpt and ckpt.opt_state, last_ckpt_info = info,
  optimizer = redco.optim.adam { learning_rate = o.learning_rate },
}

trainer:fit {
  train_examples = function(epoch_idx) return tasks(1600, true, epoch_idx) end,
  eval_examples = tasks(160, false, -1),
  n_epochs = o.n_epochs, max_steps = o.max_steps, save_last_ckpt = true,
  global_batch_size = o.global_batch_size, per_device_batch_size = o.per_device_batch_size,
  eval_predictor = trainer:get_default_predictor {
    -- Scores on the second halves after some steps on the first halves.
    pred_fn = function(rng, params, batch)
      local scores = {}
      for _, n_steps in ipairs { 0, 1, 3 } do
        scores[("%s_after_%d"):format(kind.metric, n_steps)] = for_each_task(function(p, task)
          local output = kind.apply(adapted(p, task, n_steps), task.test.x)
          return (kind.score or kind.loss)(output, task.test.y)
        end)(params, batch)
      end
      return scores
    end,
  },
  eval_metric_fn = function(examples, preds)
    local all = redco.data.default_collate(preds)
    return tree.map(function(scores) return scores:mean():item() end, all)
  end,
}

torch.save(trainer.params, o.workdir .. "/model.safetensors")
