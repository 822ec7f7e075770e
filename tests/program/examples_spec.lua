-- The examples learn what their READMEs say, and give the same numbers however a batch is cut.
local gguf_files = require "gguf_files"
local redco = require "redco"
local testing = require "testing"

local program, source, scratch = os.getenv "REDCO_LUA", os.getenv "REDCO_SOURCE", os.tmpname()
os.remove(scratch)
os.execute("mkdir " .. scratch)

-- Runs a script of the repository, with arguments; returns what it prints.
local function execute(n_processes, words)
  local command = ("cd '%s' && '%s' --nproc %d %s >%s/output 2>&1 </dev/null"):format(source,
    program, n_processes, words, scratch)
  local status = os.execute(command)
  local output = io.open(scratch .. "/output"):read "*a"
  if status ~= 0 then error(command .. "\n" .. output, 0) end
  return output
end

-- The path of a new folder.
local n_folders = 0
local function new_folder()
  n_folders = n_folders + 1
  return ("%s/run_%d"):format(scratch, n_folders)
end

-- Returns the lines of a metrics.jsonl: of steps, and of evaluations.
local function metrics_in(workdir)
  local steps, evaluations = {}, {}
  for line in io.lines(workdir .. "/metrics.jsonl") do
    local list = line:find '"kind":"eval"' and evaluations or steps
    local metrics = {}
    for name, value in line:gmatch '"([%w_]+)":([-%d.e+]+)' do metrics[name] = tonumber(value) end
    list[#list + 1] = metrics
  end
  return steps, evaluations
end

-- Runs an example, the train.lua of a folder or another file, on one process or more, with each of
-- the arguments in turn, {arguments, workdir}; returns a list of {steps, evaluations, workdir}.
local function run_in_turn(example, n_processes, runs)
  local script = "examples/" .. (example:find "%.lua$" and example or example .. "/train.lua")
  local words, found = {}, {}
  for i, each in ipairs(runs) do
    local workdir = each[2] or new_folder()
    words[i], found[i] = ("%s --workdir=%s %s"):format(script, workdir, each[1]),
      { workdir = workdir }
  end
  execute(n_processes, (#runs > 1 and "tests/program/in_turn.lua " or "")
    .. table.concat(words, " -- "))
  for _, each in ipairs(found) do each.steps, each.evaluations = metrics_in(each.workdir) end
  return found
end

-- Runs it once; returns its steps, evaluations and workdir.
local function run(example, arguments)
  local found = run_in_turn(example, 1, { { arguments } })[1]
  return found.steps, found.evaluations, found.workdir
end

-- Compares the "Eval results" of an example's README with the evaluations of a run. Another number
-- of threads rounds differently, which shows most while the model learns quickest.
local function expect_figures(example, evaluations)
  local by_step, n = {}, 0
  for _, evaluation in ipairs(evaluations) do by_step[evaluation.step] = evaluation end
  local page = redco.data.read(source .. "/examples/" .. example .. "/README.md")
  for step, figures in page:gmatch "Eval results %(step (%d+)%): ([^\n]+)" do
    local evaluation = by_step[tonumber(step)]
    assert(evaluation, ("the run of %s has no evaluation at step %s"):format(example, step))
    for name, figure in figures:gmatch "([%a_][%w_]*) (%d[%d.e+-]*)" do
      local stated, found = tonumber(figure), evaluation[name]
      assert(found and math.abs(found - stated) <= 0.05 + 0.2 * stated,
        ("%s, step %s: %s is %s, in the README %s"):format(example, step, name, found, figure))
      n = n + 1
    end
  end
  assert(n > 0, "the README of " .. example .. " has no figures")
end

testing.test("digits: both models learn", function()
  local cnn, mlp = unpack(run_in_turn("digits", 1, { { "" }, { "--model=mlp" } }))
  for name, found in pairs { cnn = { cnn, 0.98 }, mlp = { mlp, 0.96 } } do
    local evaluations, least = found[1].evaluations, found[2]
    local accuracy = evaluations[#evaluations].accuracy
    assert(accuracy > least, ("%s: accuracy on held-out digits: %g"):format(name, accuracy))
  end
  expect_figures("digits", cnn.evaluations)
end)

testing.test("digits: short.lua gets the accuracy of its header", function()
  local least = redco.data.read(source .. "/examples/digits/short.lua"):match "more than (%d+) %%"
  local accuracy = execute(1, "examples/digits/short.lua"):match "Accuracy: ([%d.]+) %%\n$"
  assert(tonumber(accuracy) > tonumber(least), "accuracy on held-out digits: " .. accuracy)
end)

testing.test("digits: IDX files are read", function()
  local folder = "/usr/share/datasets/fashion-mnist"
  if not io.open(folder .. "/t10k-labels-idx1-ubyte.gz") then
    print("absent, so not tried: Debian's dataset-fashion-mnist")
    return
  end
  local steps = run("digits", "--max-steps=40 --data=" .. folder)
  assert(steps[40].loss < steps[1].loss - 0.5, steps[40].loss)
end)

testing.test("digits: a batch in four pieces gives the same losses", function()
  local options = "--dropout=0 --max-steps=10 --global-batch-size=32 --per-device-batch-size="
  local found = run_in_turn("digits", 1, { { options .. 32 }, { options .. 8 } })
  local whole, pieces = found[1].steps, found[2].steps
  assert(#whole == 10 and #pieces == 10)
  for i = 1, 10 do
    for _, name in ipairs { "loss", "grad_norm", "lr" } do
      local a, b = whole[i][name], pieces[i][name]
      assert(math.abs(a - b) <= 2e-5 * math.max(1, math.abs(a)),
        ("step %d: %s %.8f, %.8f"):format(i, name, a, b))
    end
  end
end)

local function write(path, text)
  local file = assert(io.open(path, "w"))
  file:write(text)
  file:close()
end

-- The first lines of an example's data, as a file of their own.
local function first_lines(path, n)
  local part = scratch .. "/" .. path:match "[^/]+$"
  write(part, table.concat(redco.data.lines(source .. "/examples/" .. path):tolist(), "\n", 1, n))
  return part
end

-- A ViT's folder.
local vit = scratch .. "/vit"
redco.models.from_config {
  model_type = "vit", image_size = 32, patch_size = 8, hidden_size = 32, intermediate_size = 64,
  num_hidden_layers = 1, num_attention_heads = 2,
}.save_pretrained(vit)
write(vit .. "/preprocessor_config.json",
  redco.data.read(source .. "/tests/cases/vit_gpt2/preprocessor_config.json"))

-- Of each example of a model: options that make it small and for its smallest new model, folders it
-- can go on from, and what its evaluations tell.
local smoke = {
  text_to_text = {
    all = "--eval-every=5 --max-tgt-len=8 --num-beams=2 --global-batch-size=8 "
      .. "--per-device-batch-size=8 --data=" .. first_lines("text_to_text/data/verses.jsonl", 24),
    half = 4,  -- of the batch
    new = "--d-model=32 --d-ff=64 --num-layers=1 --num-heads=2",
    folders = { "--model-dir=" .. source .. "/tests/cases/t5_gated_untied",
      "--model-dir=" .. source .. "/tests/cases/bart" },
    metrics = { "loss", "bleu", "rouge1", "rougeL", "exact_match" },
  },
  language_modeling = {
    all = "--context-length=32 --max-new-tokens=8 --data="
      .. first_lines("language_modeling/data/corpus.txt", 120),
    half = 2,
    new = "--model-type=llama --n-layer=1 --n-embd=32 --n-head=2",
    folders = { "--model-dir=" .. source .. "/tests/cases/llama" },
    metrics = { "loss" },
  },
  image_to_text = {
    all = "--max-tgt-len=8 --num-beams=2 --n-emoji=8",
    half = 8,
    new = "--hidden-size=32 --num-hidden-layers=1 --num-attention-heads=2",
    folders = { ("--model-dir=%s/tests/cases/vit_gpt2 --tokenizer-dir=%s/tests/cases/gpt2"):format(
      source, source), ("--encoder-dir=%s --decoder-dir=%s/tests/cases/gpt2"):format(vit, source) },
    metrics = { "loss", "exact_match", "rouge1" },
  },
  zero_shot = {
    all = "--n-emoji=4 --n-places=1 --global-batch-size=16 --per-device-batch-size=16",
    half = 8,  -- both halves are compared with each other
    new = "--hidden-size=32 --num-hidden-layers=1 --num-attention-heads=2 --projection-dim=16",
    folders = {},
    metrics = { "loss", "accuracy", "emoji_accuracy" },
  },
  speech_to_text = {
    all = "--n-sequences=24 --n-held-out=6 --max-digits=2 --max-tgt-len=8 --global-batch-size=8 "
      .. "--per-device-batch-size=8",
    half = 4,
    new = "--d-model=32 --encoder-layers=1 --decoder-layers=1 --num-attention-heads=2",
    folders = { "--model-dir=" .. source .. "/tests/cases/whisper" },
    metrics = { "loss", "word_error_rate" },
  },
  classification = {
    all = "--global-batch-size=8 --per-device-batch-size=8 --data="
      .. first_lines("classification/data/domains.jsonl", 24),
    half = 4,
    new = "--hidden-size=32 --num-hidden-layers=1 --num-attention-heads=2 --intermediate-size=32",
    folders = { "--model-dir=" .. source .. "/tests/cases/bert" },
    metrics = { "loss", "accuracy", "f1", "matthews" },
  },
  retrieval = {
    all = "--global-batch-size=8 --per-device-batch-size=8 --matryoshka-dims=16,8 --data="
      .. first_lines("text_to_text/data/verses.jsonl", 24),
    half = 4,  -- both halves are compared with each other
    new = "--hidden-size=32 --num-hidden-layers=1 --num-attention-heads=2 --intermediate-size=32",
    folders = { "--model-dir=" .. source .. "/tests/cases/bert" },
    metrics = { "loss", "mrr_16", "recall_at_1_8" },
  },
}

-- Runs that go three steps, stop after two, and continue to the third: the first element of the
-- list returned is the whole one, the third the resumed one, in `workdir`.
local function resumed(arguments, workdir)
  workdir = workdir or new_folder()
  return { { arguments .. " --max-steps=3" }, { arguments .. " --max-steps=2", workdir },
    { arguments .. " --max-steps=3 --resume", workdir } }
end

local function expect_resumed(found)
  local whole, steps = found[1].steps, found[3].steps
  testing.expect_equal(#steps, 3)
  for i = 1, 3 do testing.expect_equal(steps[i].loss, whole[i].loss) end
end

for example, o in pairs(smoke) do
  local model_split, batch_split = " --n-model-shards=2", " --per-device-batch-size=" .. o.half
  local all = o.all .. " --n-epochs=2 "
  local workdir = new_folder()
  local from_folders = { "--model-dir=" .. workdir .. "/model", unpack(o.folders) }
  local alone, shared

  testing.test(example .. ": a new model is trained, and folders are trained on", function()
    local runs = resumed(all .. o.new, workdir)
    for _, from in ipairs(from_folders) do
      runs[#runs + 1] = { all .. from .. " --max-steps=2" }
    end
    alone = run_in_turn(example, 1, runs)
    for i = 4, #alone do testing.expect_equal(#alone[i].steps, 2) end
    for i, found in ipairs(alone) do
      for _, name in ipairs(o.metrics) do
        assert(found.evaluations[1][name], ("no %s in the evaluation of run %d"):format(name, i))
      end
    end
  end)
  testing.test(example .. ": --resume continues as if there had been no break", function()
    expect_resumed(alone)
  end)
  testing.test(example .. ": the same losses on two processes", function()
    local runs = { { all .. o.new .. model_split .. " --max-steps=2" },
      { all .. o.new .. batch_split .. " --max-steps=2" } }
    for _, from in ipairs(from_folders) do
      runs[#runs + 1] = { all .. from .. model_split .. " --max-steps=2" }
    end
    shared = run_in_turn(example, 2, runs)
    for i, found in ipairs(shared) do
      local one = alone[i + 1]  -- of the same model: the first two are the new one
      for _, kind in ipairs { "steps", "evaluations" } do
        for k, expected in ipairs { unpack(one[kind], 1, #found[kind]) } do
          local loss = found[kind][k].loss
          assert(math.abs(loss - expected.loss) <= 1e-4 * expected.loss,
            ("with %s: loss %d of the %s is %.6f, on one process %.6f"):format(runs[i][1], k, kind,
              loss, expected.loss))
        end
      end
      testing.expect_equal(#found.steps, 2)
    end
  end)
end

-- Small rollouts and episodes.
local small_ppo = "--n-envs=8 --rollout-length=8 --minibatch-size=32 --update-epochs=1 "
  .. "--hidden-size=16 --learning-rate=0.01"
local small_ddpg = "--warm-up=1 --updates-per-episode=4 --batch-size=16 --hidden-size=16"
local small_sums = "--most=10 --n-held-out=10 --n-solved=40 --solved-steps=4 --hidden-size=16 "
  .. "--n-rollouts=4 --num-prompts=4 --num-generations=4"

local small_questions = "--hidden-size=32 --num-hidden-layers=1 --num-attention-heads=2 "
  .. "--n-emoji=4 --max-new-tokens=4 --global-batch-size=8 --per-device-batch-size=8"

for example, arguments in pairs {
  ["image_to_text/questions.lua"] = small_questions,
  ["reinforcement_learning/ppo.lua"] = small_ppo,
  ["reinforcement_learning/ddpg.lua"] = small_ddpg,
  ["reinforcement_learning/sums.lua"] = small_sums,
  digits = "--model=mlp", meta_learning = "--task=sines",
  private_training = "--data=digits --global-batch-size=64",
} do
  testing.test(example .. ": --resume continues as if there had been no break", function()
    expect_resumed(run_in_turn(example, 1, resumed(arguments)))
  end)
end

-- Trains with these options on one process and in each of the layouts, and expects equal losses.
local function expect_same_losses(example, arguments, ...)
  local expected = run(example, arguments)
  local runs = {}
  for i, layout in ipairs { ... } do runs[i] = { arguments .. layout } end
  for k, found in ipairs(run_in_turn(example, 2, runs)) do
    local steps, layout = found.steps, runs[k][1]
    testing.expect_equal(#steps, #expected)
    for i, step in ipairs(expected) do
      for _, name in ipairs { "loss", "n_examples", "epsilon", "episode_return" } do
        local off = math.abs((steps[i][name] or 0) - (step[name] or 0))
        assert(off <= 1e-4 * math.abs(step[name] or 0),
          ("with %s: %s of step %d is off by %g"):format(layout, name, i, off))
      end
    end
  end
  return expected
end

for what, arguments in pairs { ["a new model"] = "", adapters = " --model-dir=" .. source
  .. "/tests/cases/qwen2_5_vl" } do
  testing.test("image_to_text: questions have the same losses in each layout: " .. what, function()
    local steps = expect_same_losses("image_to_text/questions.lua",
      small_questions .. " --max-steps=3" .. arguments, " --per-device-batch-size=4",
      " --n-model-shards=2", " --per-device-batch-size=4 --zero=3")
    testing.expect_equal(#steps, 3)
  end)
end

testing.test("meta_learning: the same losses in each layout, and the error falls", function()
  local steps = expect_same_losses("meta_learning", "--task=sines --max-steps=4",
    " --per-device-batch-size=8", " --n-model-shards=2",
    " --per-device-batch-size=8 --zero=3")
  testing.expect_equal(#steps, 4)
  local found = run_in_turn("meta_learning", 1, {
    { "--task=sines --max-steps=4 --first-order" },
    { "--task=sines --n-epochs=1 --learning-rate=1e-2" } })
  local first_order, evaluations = found[1].steps, found[2].evaluations
  testing.expect_equal(steps[1].loss, first_order[1].loss)
  assert(steps[1].grad_norm ~= first_order[1].grad_norm, "--first-order has no effect")
  assert(evaluations[1].error_after_1 < 0.95 * evaluations[1].error_after_0)
end)

testing.test("meta_learning: characters", function()
  local steps, evaluations = run("meta_learning", "--max-steps=10 --learning-rate=5e-3")
  assert(steps[10].loss < steps[1].loss and evaluations[1].accuracy_after_1 > 0.3)
end)

for algorithm, arguments in pairs {
  ppo = small_ppo .. " --max-steps=6", ["ppo.lua, Pendulum"] = small_ppo
    .. " --max-steps=4 --environment=Pendulum-v1", ddpg = small_ddpg .. " --max-steps=6",
} do
  testing.test("reinforcement_learning: the same curve in each layout: " .. algorithm, function()
    local script = ("reinforcement_learning/%s.lua"):format(algorithm:match "^%w+")
    local steps = expect_same_losses(script, arguments, "", " --n-model-shards=2", " --zero=3")
    assert(#steps >= 4 and steps[#steps].episode_return, "there are no steps")
  end)
end

testing.test("reinforcement_learning: the same samples in each layout: sums", function()
  local script = "reinforcement_learning/sums.lua"
  local expected, runs = run(script, small_sums), {}
  for i, layout in ipairs { "", " --n-model-shards=2", " --zero=3" } do
    runs[i] = { small_sums .. layout }
  end
  testing.expect_equal(#expected, 4)
  testing.expect_equal(expected[1].logprob_difference, 0)
  for i, found in ipairs(run_in_turn(script, 2, runs)) do
    for k, step in ipairs(expected) do
      for _, name in ipairs { "reward", "entropy", "grad_norm" } do
        assert(math.abs(found.steps[k][name] - step[name]) <= 1e-4,
          ("with %s: %s of step %d is off"):format(runs[i][1], name, k))
      end
    end
  end
end)

testing.test("reinforcement_learning: PPO learns in a few seconds", function()
  local steps = run("reinforcement_learning/ppo.lua", "--total-steps=20000 --n-envs=16 "
    .. "--minibatch-size=128")
  local first, last = steps[1].episode_return, steps[#steps].episode_return
  assert(last > first + 25, ("the mean return went from %g to %g"):format(first, last))
end)

testing.test("reinforcement_learning: DDPG in the environment of a script", function()
  local path = scratch .. "/walk.lua"
  local file = assert(io.open(path, "w"))
  file:write [[return {
    name = "Walk", observation_size = 1, action_low = { -1 }, action_high = { 1 },
    max_episode_steps = 8,
    start = function(uniform) return uniform(1) end,
    step = function(states, actions)
      local after = states + actions
      return after, -after:abs():squeeze(1), after:squeeze(1):gt(5)
    end,
  }]]
  file:close()
  local steps = run("reinforcement_learning/ddpg.lua",
    small_ddpg .. " --max-steps=3 --environment=" .. path)
  assert(#steps == 3 and steps[3].episode_return < 0, #steps)
end)

testing.test("reinforcement_learning: what goes wrong", function()
  local ok, message = pcall(run, "reinforcement_learning/ddpg.lua", "--environment=CartPole-v1")
  assert(not ok and message:find "use ppo.lua", message)
  ok, message = pcall(run, "reinforcement_learning/ppo.lua", small_ppo
    .. " --environment=Pendulum-v1 --learning-rate=1e30")
  assert(not ok and message:find "the loss of step 1 is %-?nan", message)
end)

local private = "--data=digits --global-batch-size=64 --micro-batch-size=24 --n-epochs=1 "

testing.test("private_training: the same losses, batches and budget in each layout", function()
  local steps = expect_same_losses("private_training", private .. "--max-steps=3", "",
    " --n-model-shards=2", " --zero=3")
  testing.expect_equal(#steps, 3)
  assert(steps[1].n_examples ~= steps[2].n_examples, "all batches are of one size")
end)

testing.test("private_training: it learns within its budget", function()
  local steps, evaluations = run("private_training",
    "--data=digits --global-batch-size=128 --n-epochs=10 --accountant=rdp --learning-rate=1e-2")
  assert(evaluations[10].accuracy > 0.6, evaluations[10].accuracy)
  local epsilon = steps[#steps].epsilon
  assert(epsilon > 2.9 and epsilon <= 3, epsilon)
end)

testing.test("private_training: empty batches, and no noise without a budget", function()
  local found = run_in_turn("private_training", 1, {
    { "--data=digits --global-batch-size=1 --max-steps=12 --n-epochs=1 --epsilon=0 "
      .. "--noise-multiplier=2" },
    { private .. "--max-steps=2 --epsilon=0" } })
  local steps = found[1].steps
  local n_empty = 0
  for _, step in ipairs(steps) do
    if step.n_examples == 0 then n_empty = n_empty + 1 end
  end
  assert(#steps == 12 and n_empty > 0, "no batch was empty")
  testing.expect_equal(found[2].steps[1].epsilon, nil)
  local ok, message = pcall(run, "private_training", private .. "--epsilon=0.001")
  assert(not ok and message:find "cannot be reached", message)
end)

testing.test("federated_learning: the same numbers in each layout, and after --resume", function()
  local small = "--data=digits --n-clients=20 --clients-per-round=3 --local-epochs=1 --n-rounds="
  local steps = expect_same_losses("federated_learning", small .. 2, "",
    " --n-model-shards=2 --partition=iid", " --zero=3")
  local workdir = new_folder()
  local found = run_in_turn("federated_learning", 1, { { small .. 1, workdir },
    { small .. "2 --resume", workdir } })[2].steps
  testing.expect_equal(#found, 2)
  for i = 1, 2 do testing.expect_equal(found[i].loss, steps[i].loss) end
  local matrix = redco.data.json(workdir .. "/outputs_confusion_2.json")
  testing.expect_equal(#matrix, 10)
  local ok, message = pcall(run, "federated_learning", small .. "1 --learning-rate=1e9")
  assert(not ok and message:find "round 1: the loss is not a number", message)
end)

testing.test("federated_learning: equal clients learn more quickly than different ones", function()
  local small = "--data=digits --n-clients=10 --clients-per-round=4 --n-rounds=4 --partition="
  local found = run_in_turn("federated_learning", 1, { { small .. "iid" }, { small .. "shards" } })
  local equal, different = found[1].steps, found[2].steps
  assert(equal[4].accuracy > 0.8 and equal[4].accuracy > different[4].accuracy,
    equal[4].accuracy .. " " .. different[4].accuracy)
end)

testing.test("classification: the language first, then pairs, and regression", function()
  local shape = smoke.classification.new .. " --n-epochs=1 --global-batch-size=16 "
    .. "--per-device-batch-size=16 --task="
  local function data(name, n)
    return " --data=" .. first_lines("classification/data/" .. name, n)
  end
  local steps, evaluations, workdir = run("classification", shape .. "masked_lm --n-epochs=12 "
    .. "--learning-rate=1e-2" .. data("glosses.txt", 120))
  assert(steps[1].loss > 7.8 and evaluations[12].loss < 7.6, evaluations[12].loss)
  local from = " --model-dir=" .. workdir .. "/model"
  local found = run_in_turn("classification", 1, {
    { shape .. "classification" .. data("pairs.jsonl", 32) .. from },
    { shape .. "regression" .. data("similarity.jsonl", 32) .. from } })
  local pairs_of, regression = found[1].evaluations, found[2].evaluations
  assert(pairs_of[1].f1 and pairs_of[1].loss < 1)
  assert(regression[1].pearson and regression[1].spearman)
  local bad = scratch .. "/bad.jsonl"
  write(bad, '{"text": "a cat", "label": "animal"}\n')
  local ok, message = pcall(run, "classification", shape .. "regression --data=" .. bad)
  assert(not ok and message:find("example 1 has the text a cat and the label animal", 1, true),
    message)
end)

if os.getenv "REDCO_TEST_FULL" then
  for arguments, goal in pairs {
    ["ppo.lua --environment=CartPole-v1"] = 475, ["ppo.lua --environment=Acrobot-v1"] = -90,
    ["ddpg.lua"] = -250,
  } do
    testing.test("reinforcement_learning: three of three seeds: " .. arguments, function()
      for seed = 1, 3 do
        local script, options = arguments:match "^(%S+)(.*)"
        local steps = run("reinforcement_learning/" .. script, options .. " --seed=" .. seed)
        local found = steps[#steps].episode_return
        assert(found > goal, ("seed %d: mean return %g"):format(seed, found))
      end
    end)
  end

  testing.test("classification: it is better after masked language modelling", function()
    local _, _, workdir = run("classification", "--task=masked_lm")
    local _, before = run("classification", "")
    local _, after = run("classification", "--model-dir=" .. workdir .. "/model")
    before, after = before[#before].accuracy, after[#after].accuracy
    assert(after > before, ("%.3f, from scratch %.3f"):format(after, before))
  end)

  for _, example in ipairs { "classification", "image_to_text", "meta_learning", "private_training",
    "retrieval", "speech_to_text", "text_to_text", "zero_shot" } do
    testing.test(example .. ": the figures of its README", function()
      if example == "private_training" and not io.open "/usr/share/datasets/fashion-mnist" then
        print "absent, so not tried: Debian's dataset-fashion-mnist"
        return
      end
      local _, evaluations = run(example, "")
      expect_figures(example, evaluations)
    end)
  end
end

testing.test("retrieval: micro-batches change no loss, and translations are found", function()
  local small = "--hidden-size=64 --num-hidden-layers=1 --num-attention-heads=2 "
    .. "--intermediate-size=64 --dropout=0 --matryoshka-dims=64 --global-batch-size=64 "
    .. "--held-out-every=40 "
  local found = run_in_turn("retrieval", 1, {
    { small .. "--max-steps=3 --per-device-batch-size=64" },
    { small .. "--max-steps=3 --per-device-batch-size=16" },
    { small .. "--n-epochs=2 --per-device-batch-size=64 --learning-rate=3e-3" } })
  for i, step in ipairs(found[1].steps) do
    for _, name in ipairs { "loss", "grad_norm" } do
      local off = math.abs(found[2].steps[i][name] - step[name])
      assert(off <= 1e-4 * step[name], ("step %d: %s is off by %g"):format(i, name, off))
    end
  end
  local evaluations = found[3].evaluations
  local rank = evaluations[#evaluations].mrr_64
  assert(rank > 0.2, "the mean reciprocal rank of held-out translations: " .. rank)
end)

testing.test("zero_shot: unseen captions are found, and classify.lua names a picture", function()
  local options, least = "--n-emoji=6 --n-epochs=12 --hidden-size=64 --num-hidden-layers=1", 0.9
  if os.getenv "REDCO_TEST_FULL" then
    options = ""
    local page = redco.data.read(source .. "/examples/zero_shot/README.md")
    least = page:match "right: accuracy ([%d.]+)%."
  end
  local _, evaluations, workdir = run("zero_shot", options)
  local accuracy = evaluations[#evaluations].accuracy
  assert(accuracy > least - 0.05, "accuracy on held-out captions: " .. accuracy)
  local answer = execute(1, "examples/zero_shot/classify.lua "
    .. "--image=examples/zero_shot/data/penguin.png --model-dir=" .. workdir
    .. "/model --labels='penguin in pink light, bone in green light'")
  local first, second = answer:match "^ *([%d.]+) %%  [^\n]+\n *([%d.]+) %%  [^\n]+\n$"
  assert(tonumber(first) >= tonumber(second), answer)
end)

testing.test("text_to_image: the same losses on two processes, and DreamBooth", function()
  local small = "--n-emoji=4 --vae-steps=2 --channels=8 --num-inference-steps=2 --n-epochs=2 "
    .. "--global-batch-size=4 --per-device-batch-size="
  local steps, _, workdir = run("text_to_image", small .. 4)
  local shared = run_in_turn("text_to_image", 2, { { small .. 2 } })[1].steps
  testing.expect_equal(#shared, #steps)
  for i, step in ipairs(steps) do
    local off = math.abs(shared[i].loss - step.loss)
    assert(off <= 1e-4 * step.loss, ("the loss of step %d is off by %g"):format(i, off))
  end
  local data = scratch .. "/pictures"
  os.execute("mkdir " .. data)
  write(data .. "/a.png", redco.data.read(workdir .. "/samples.png"))
  write(data .. "/metadata.jsonl", '{"file_name": "a.png", "text": "four"}\n')
  local _, _, second = run("text_to_image", ("%s --model-dir=%s/model --data=%s --random-flip "
    .. "--class-prompt=emoji --n-class-images=2 --instance-prompt='sks emoji' "
    .. "--prompts='sks emoji; bone'"):format(small .. 4, workdir, data))
  testing.expect_equal(redco.data.image(second .. "/samples.png"):size(2), 2 * 34 + 2)
  local out = scratch .. "/compared.png"
  local answer = execute(1, ("examples/text_to_image/compare.lua --before=%s/model "
    .. "--after=%s/model --picture=examples/text_to_image/data/panda.png --out=%s --n-pictures=2 "
    .. "--num-inference-steps=2"):format(workdir, second, out))
  local before, after = answer:match "(%d%.%d+) +(%d%.%d+) +sks emoji\n"
  assert(before and after and answer:find "%d +emoji\n", answer)
  testing.expect_equal(redco.data.image(out):size(2), 3 * 34 + 2)
  local pipeline = redco.diffusion.from_pretrained(second .. "/model")
  testing.expect_equal(pipeline("bone", { num_inference_steps = 1 }):size(2), 32)
end)

testing.test("digits: the saved model classifies a picture", function()
  local _, _, workdir = run("digits", "--n-epochs=4")
  local answer = execute(1, "examples/digits/train.lua --image=examples/digits/data/seven.png "
    .. "--workdir=" .. workdir)
  assert(answer:find "^7 %(", answer)
end)

testing.test("speech_to_text: the saved model writes what a file says", function()
  local arguments = smoke.speech_to_text.all .. " " .. smoke.speech_to_text.new
  local _, _, workdir = run("speech_to_text", arguments .. " --max-steps=1")
  local answer = execute(1, "examples/speech_to_text/train.lua "
    .. "--audio=tests/lua/audio_cases/pcm16.flac --workdir=" .. workdir)
  assert(answer:find "\n$" and not answer:find "<|", answer)
end)

testing.test("language_modeling: it learns, two runs are the same, and the model writes", function()
  local options = "--model-type=gpt2 --max-steps=40 --n-layer=2 --n-embd=64 --context-length=64 "
    .. "--dropout=0.1 --global-batch-size=8 --per-device-batch-size=8 --max-new-tokens=20 "
    .. "--n-epochs=1"
  local found = run_in_turn("language_modeling", 1, { { options }, { options } })
  local first, second, workdir = found[1].steps, found[2].steps, found[1].workdir
  local loss = found[1].evaluations[1].loss
  assert(first[1].loss > 7 and loss < 6.4, loss)
  testing.expect_equal(#second, 40)
  for i = 1, 40 do testing.expect_equal(second[i].loss, first[i].loss) end

  local prompt = "In the beginning"
  local generate = ("examples/language_modeling/generate.lua --model-dir=%s/model "
    .. "--max-new-tokens=20 --prompt='%s'"):format(workdir, prompt)
  local written = execute(1, generate)
  testing.expect_equal(written:sub(1, #prompt), prompt)
  assert(#written > #prompt + 15, written)
  local shared = execute(2, ("tests/program/in_turn.lua %s -- %s --n-model-shards=2"):format(
    generate, generate))
  testing.expect_equal(shared:gsub("%[0%] ", ""), written .. written)
end)

testing.test("text_to_text: no held-out sentence is among those to train on", function()
  local sentences = dofile(source .. "/examples/text_to_text/sentences.lua")
  local train, held_out = sentences(1000, 100, 1)
  testing.expect_equal(#train, 1000)
  testing.expect_equal(#held_out, 100)
  local seen = {}
  for _, pair in ipairs(train) do
    seen[pair.source] = true
    local is_right = not pair.source:find " a [aeiou]" and not pair.target:find " de el "
      and (pair.source:find "%?$" == nil) == (pair.target:find "^¿.*%?$" == nil)
    assert(is_right, pair.source .. " " .. pair.target)
  end
  for _, pair in ipairs(held_out) do assert(not seen[pair.source], pair.source) end
end)

testing.test("text_to_text: pairs come from Debian's descriptions", function()
  local lists = scratch .. "/lists"
  os.execute("mkdir " .. lists)
  write(lists .. "/host_main_i18n_Translation-en", [[
Package: a
Description-md5: 0123
Description-en: one "line"
 What it is, at
 length.
 .
 More of it.

Package: b
Description-en: no more than a line
]])
  if not io.open "/usr/lib/apt/apt-helper" then
    print "absent, so not tried: Debian's apt"
    return
  end
  local out = scratch .. "/made.jsonl"
  execute(1, ("examples/text_to_text/data/make_summarization_pairs.lua --lists=%s --out=%s")
    :format(lists, out))
  local made = redco.data.jsonl(out)
  testing.expect_equal(#made, 1)
  testing.expect_equal(made[1].source, "What it is, at length. More of it.")
  testing.expect_equal(made[1].target, 'one "line"')
end)

-- With a model of random weights: that it learns says that the answers are where they are sought.
testing.test("chat: adapters learn answers, and redco-lua chat takes them", function()
  local case, model = source .. "/tests/cases/llama3", scratch .. "/model.gguf"
  gguf_files.write(model, gguf_files.add_byte_level(gguf_files.metadata(case), case),
    gguf_files.tensors(case, "F32"))
  local data = assert(io.open(scratch .. "/answers.jsonl", "w"))
  for i = 1, 40 do data:write(('{"question": "What is %d?", "answer": "the sea"}\n'):format(i)) end
  data:close()
  local steps, evaluations = run("chat/finetune", ("--model=%s --data=%s/answers.jsonl "
    .. "--n-epochs=12 --learning-rate=0.05 --n-samples=1"):format(model, scratch))
  assert(steps[1].loss > 4 and evaluations[#evaluations].loss < 0.1,
    steps[1].loss .. " " .. evaluations[#evaluations].loss)
  local pipe = io.popen(("echo 'What is 77?' | '%s' chat %s/*/adapter"):format(program, scratch))
  testing.expect_equal(pipe:read "*a", "the sea\n")
  pipe:close()
end)

testing.test("chat/preferences: held-out pairs are told apart, and adapters are saved", function()
  local pairs_of = assert(io.open(scratch .. "/pairs.jsonl", "w"))
  for i = 1, 48 do
    pairs_of:write(('{"prompt": "What is %d?", "chosen": "the sea", "rejected": "a hill"}\n')
      :format(i))
  end
  pairs_of:close()
  local _, evaluations, workdir = run("chat/preferences", ("--model=%s --data=%s/pairs.jsonl "
    .. "--n-epochs=4 --learning-rate=0.01 --n-samples=1"):format(scratch .. "/model.gguf", scratch))
  testing.expect_equal(evaluations[#evaluations].accuracy, 1)
  assert(evaluations[#evaluations].loss < 0.4 * evaluations[1].loss, evaluations[1].loss)
  assert(io.open(workdir .. "/adapter/adapter_model.safetensors"))
end)

os.execute("rm -r " .. scratch)
testing.finish()
