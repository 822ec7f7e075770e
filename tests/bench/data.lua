-- Examples per second of the data path, with workers, beside PyTorch's DataLoader with as many in
-- interleaved runs: JSONL read, tokenized and padded; JPEG files decoded, resized and normalized.
-- And how much of the collation is hidden behind steps that take as long. Prints one JSON line.
-- --python= names a Python with torch, tokenizers and Pillow, which also makes the data.
local clock = require "clock"
local redco = require "redco"

local o = redco.options { python = "python3", num_workers = 2, batch_size = 32, runs = 7,
  folder = "" }

local folder = o.folder ~= "" and o.folder or os.tmpname() .. ".d"
assert(os.execute("mkdir -p " .. folder) == 0)

-- The peer answers one run at a time, through files that stand for its input and output.
local questions = folder .. "/questions"
assert(os.execute(("rm -f %s; mkfifo %s"):format(questions, questions)) == 0)
local answers = assert(io.popen(("%s tests/bench/peer_data.py %s %d %d < %s"):format(o.python,
  folder, o.num_workers, o.batch_size, questions)))
local ask = assert(io.open(questions, "w"))
assert(answers:read "*l" == "ready", "the peer did not start")

local function run_theirs(kind)
  ask:write(kind, "\n")
  ask:flush()
  local seconds, total = answers:read("*l"):match "(%S+) (%S+)"
  return tonumber(seconds), tonumber(total)
end

local torch = redco.torch
local deployer = redco.Deployer { seed = 1, verbose = false }
local tokenizer = redco.Tokenizer.from_pretrained "tests/cases/gpt2"
tokenizer.pad_token = tokenizer.eos_token
local prepare = redco.data.image_processor {
  size = { height = 224, width = 224 }, resample = 2, do_normalize = true,
  image_mean = { 0.5, 0.5, 0.5 }, image_std = { 0.5, 0.5, 0.5 },
}

local tasks = {
  {
    name = "text", key = "attention_mask", n_batches = 1000,
    examples = redco.data.jsonl(folder .. "/texts.jsonl"),
    collate_fn = function(examples)
      local texts = {}
      for i, example in ipairs(examples) do texts[i] = example.text end
      return tokenizer(texts, { padding = "longest" })
    end,
  },
  {
    name = "image", key = "pixel_values", n_batches = 40,
    examples = redco.data.image_folder(folder .. "/images"),
    collate_fn = function(examples)
      local images = {}
      for i, example in ipairs(examples) do images[i] = example.image end
      return { pixel_values = prepare(images) }
    end,
  },
}

--- Seconds of a pass over the examples.
local function new_pass(examples, collate_fn, num_workers, look)
  local trainer = redco.Trainer {
    deployer = deployer, params = { w = torch.zeros { 1 } }, collate_fn = collate_fn,
    num_workers = num_workers, optimizer = redco.optim.sgd { learning_rate = 1 },
    loss_fn = function(_, _, params, batch)
      look(batch)
      return params.w:sum()
    end,
  }
  return function()
    local start = clock.now()
    trainer:eval_loss { examples = examples, per_device_batch_size = o.batch_size }
    return clock.now() - start
  end
end

local function no_collate() return { x = torch.zeros { 1 } } end

--- The part of the collation that does not show beside steps that take as long, in passes of some
--- seconds, beside which the start of the workers is short.
local function hidden(task)
  local n_batches = task.n_batches
  local examples = redco.data.dataset(n_batches * o.batch_size, function(i)
    return task.examples[(i - 1) % #task.examples + 1]
  end)
  local alone = new_pass(examples, task.collate_fn, 0, function() end)
  alone()
  local step_time = alone() / n_batches
  local function step()
    local start = clock.now()
    repeat until clock.now() - start > step_time
  end
  local passes = {
    new_pass(examples, task.collate_fn, 0, step),
    new_pass(examples, task.collate_fn, o.num_workers, step),
    new_pass(redco.data.dataset(#examples, function() return 0 end), no_collate, 0, step),
  }
  local parts = {}
  for run = 1, o.runs do
    local in_turn, ahead, steps = passes[1](), passes[2](), passes[3]()
    parts[run] = (in_turn - ahead) / (in_turn - steps)
  end
  return clock.median(parts)
end

local results = {}
for i, task in ipairs(tasks) do
  local total
  local pass = new_pass(task.examples, task.collate_fn, o.num_workers, function(batch)
    total = total + batch[task.key]:double():sum():item()
  end)
  local function run_ours()
    total = 0
    return pass()
  end
  run_ours()
  local mine, peers, ratios = {}, {}, {}
  for run = 1, o.runs do
    local their_total
    mine[run] = run_ours()
    peers[run], their_total = run_theirs(task.name)
    ratios[run] = peers[run] / mine[run]
    assert(math.abs(total - their_total) < 1e-3 * math.abs(total) + 1, ("%s: %g, the peer has %g")
      :format(task.name, total, their_total))
  end
  results[i] = ('"%s": {"examples_per_s": %.0f, "peer_examples_per_s": %.0f, "ratio": %.2f, '
    .. '"hidden": %.2f}'):format(task.name, #task.examples / clock.median(mine),
    #task.examples / clock.median(peers), clock.median(ratios), hidden(task))
end
print('{"name": "data", ' .. table.concat(results, ", ") .. "}")
ask:close()
if o.folder == "" then os.execute("rm -r " .. folder) end
