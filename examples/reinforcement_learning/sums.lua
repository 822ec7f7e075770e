-- GRPO (arXiv 2402.03300): a small language model learns to add from a reward that checks answers.
local redco = require "redco"
local torch, optim = redco.torch, redco.optim

local o = redco.options {
  workdir = "workdir",
  resume = false,  -- continue from the newest checkpoint of workdir, if there is one
  seed = 1, n_model_shards = 1, zero = 0,
  most = 50, n_held_out = 500, hidden_size = 64,
  n_solved = 1000, solved_steps = 600,  -- sums of the homework, and steps with 64 of them
  sloppy = 0.6,  -- the share of answers that forget to carry
  n_rollouts = 80, num_prompts = 32, num_generations = 16,
  max_steps = 0,  -- more than 0 ends the run after so many optimizer steps
  loss_type = "dr_grpo", learning_rate = 5e-4,
}

-- A character is a token; 12 ends a text.
local characters, ids = "0123456789+=", {}
for i = 1, #characters do ids[characters:sub(i, i)] = i - 1 end
local eos = #characters

local function tokens_of(text)
  local list = {}
  for character in text:gmatch "." do list[#list + 1] = ids[character] end
  return list
end

local function text_of(tokens)
  local list = {}
  for i, token in ipairs(tokens) do list[i] = characters:sub(token + 1, token + 1) end
  return table.concat(list)
end

-- All sums of numbers below `most`, in an order that depends on the seed. The first are held out.
local problems = {}
for _, k in ipairs(torch.randperm(o.most ^ 2, { generator = torch.Generator(o.seed) }):tolist()) do
  local a, b = math.floor(k / o.most), k % o.most
  local text = ("%d+%d="):format(a, b)
  problems[#problems + 1] = { prompt = tokens_of(text), text = text, a = a, b = b,
    answer = tostring(a + b) }
end
local held_out, solved, unsolved = {}, {}, {}
for i, problem in ipairs(problems) do
  local list = i <= o.n_held_out and held_out or #solved < o.n_solved and solved or unsolved
  list[#list + 1] = problem
end

local deployer = redco.Deployer {
  seed = o.seed, n_model_shards = o.n_model_shards, zero = o.zero, workdir = o.workdir }
local model = redco.models.from_config({
  model_type = "llama", vocab_size = eos + 1, hidden_size = o.hidden_size,
  intermediate_size = 4 * o.hidden_size, num_hidden_layers = 2, num_attention_heads = 4,
  max_position_embeddings = 16, eos_token_id = eos,
}, { generator = deployer:gen_rng() })

-- First the model learns from the homework of pupils who often forget to carry.
local function collate_homework(rows)
  local input_ids, labels = {}, {}
  local is_sloppy = torch.rand({ #rows }):lt(o.sloppy):tolist()
  for i, row in ipairs(rows) do
    local forgotten = is_sloppy[i] and row.a % 10 + row.b % 10 >= 10 and 10 or 0
    local all = tokens_of(row.text .. row.a + row.b - forgotten)
    all[#all + 1] = eos
    input_ids[i], labels[i] = {}, {}
    for at = 1, 10 do
      input_ids[i][at] = all[at] or eos
      labels[i][at] = at >= #row.prompt and all[at + 1] or -100
    end
  end
  return { input_ids = torch.tensor(input_ids), labels = torch.tensor(labels) }
end

local function schedule(peak, steps)
  return optim.cosine_schedule {
    init_value = 0, peak_value = peak, warmup_steps = math.ceil(steps / 10), total_steps = steps }
end

local ckpt, last = unpack(o.resume and { deployer:load_last_ckpt() } or {})
if not ckpt then
  local teacher = redco.Trainer {
    deployer = deployer, params = model.params, loss_fn = model.loss_fn,
    collate_fn = collate_homework,
    optimizer = optim.adamw { learning_rate = schedule(3e-3, o.solved_steps) },
  }
  for step = 0, o.solved_steps - 1 do
    local rows = {}
    for i = 1, 64 do rows[i] = solved[(step * 64 + i - 1) % #solved + 1] end
    teacher:train_step { examples = rows }
  end
  model.params = redco.tree.map(function(p) return p:full():detach():clone() end, teacher.params)
end

-- Then it is only told whether its answers are right.
local per_device = o.num_prompts * o.num_generations / deployer.mesh.dp
local sampler = redco.rl.language.sampler {
  model = model, deployer = deployer, examples = unsolved, seed = o.seed,
  rewards = { correct = function(tokens, problem)
    return text_of(tokens) == problem.answer and tokens[#tokens] == eos
  end },
  num_prompts = o.num_prompts, num_generations = o.num_generations, max_completion_length = 5,
  max_rows = 512, per_device_batch_size = per_device, state = ckpt and ckpt.custom_state,
}

local function examine(params, title)
  local result = sampler:evaluate(params, held_out)
  local share, n = result.reward, #held_out
  deployer:log_info(("%s: %.1f %% (standard error %.1f) of %d held-out sums are right"):format(
    title, 100 * share, 100 * math.sqrt(share * (1 - share) / n), n))
  for i = 1, 4 do
    local problem, tokens = held_out[i], result.samples[i].tokens
    deployer:log_info(("  %s%s (%s)"):format(problem.text, text_of(tokens), problem.answer))
  end
end
if not ckpt then examine(model.params, "before") end
local trainer
trainer = redco.Trainer {
  deployer = deployer, custom_state = sampler.state, last_ckpt_info = last,
  params = ckpt and ckpt.params or model.params, opt_state = ckpt and ckpt.opt_state,
  collate_fn = sampler.collate_fn, loss_fn = sampler:loss_fn { loss_type = o.loss_type },
  optimizer = optim.chain { optim.clip_by_global_norm(1),
    optim.adamw { learning_rate = schedule(o.learning_rate, o.n_rollouts) } },
}
trainer:fit {
  train_examples = function(epoch_idx) return sampler:rollout(trainer, epoch_idx) end,
  per_device_batch_size = per_device, n_epochs = o.n_rollouts, max_steps = o.max_steps,
  save_last_ckpt = true,
}
examine(trainer.params, "after")
torch.save(trainer.params, o.workdir .. "/model.safetensors")
