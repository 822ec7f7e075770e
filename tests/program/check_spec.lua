-- redco-lua check finds the one mistake of each of these scripts, and none in the examples.
local cases = require "check_cases"
local data = require "redco.data"
local gguf_files = require "gguf_files"
local program = require "program"
local redco = require "redco"
local run = require "redco.check.run"
local testing = require "testing"
local tiny_models = require "tiny_models"

local test, expect_equal, expect_has = testing.test, testing.expect_equal, program.expect_has
local source, torch = os.getenv "REDCO_SOURCE", redco.torch

-- A ViT with its processor.
program.shell(("mkdir vit_with_processor; cp '%s'/tests/cases/vit/* vit_with_processor"):format(
  source))
program.write("vit_with_processor/preprocessor_config.json",
  '{"image_processor_type": "ViTImageProcessor", "size": 12}')

-- Checks what a function trains, as the program does with a script, and returns what was found.
local function check_call(f, ...)
  run.start { n_rows = 1000, n_examples = 2 }
  local ok, message = pcall(f, ...)
  return run.result("a function", ok and "" or tostring(message))
end

-- Checks a script in this process. It finds the files beside it.
local function check(path, ...)
  local lua_path = package.path
  rawset(_G, "arg", { [0] = path, ... })
  package.path = path:match "^.*/" .. "?.lua;" .. lua_path
  local result = check_call(assert(loadfile(path)), ...)
  package.path = lua_path
  return result
end

local function names(result)
  local list = {}
  for i, finding in ipairs(result.findings) do
    list[i] = ("%s (%s of %s, %s)"):format(finding.name, finding.count, finding.of, finding.where)
  end
  return table.concat(list, "\n")
end

for i, case in ipairs(cases) do
  local expected, text = unpack(case)
  test(("script %d: %s"):format(i, expected or "nothing"), function()
    text = text:gsub('"vit_with_processor"', ("%q"):format(program.folder .. "/vit_with_processor"))
    local path = program.write("case.lua", text)
    local result = check(path)
    local found = result.findings
    local is_right = expected and #found == 1 and found[1].name == expected
      or not expected and #found == 0
    if not is_right then error("found:\n" .. names(result), 0) end
  end)
end

test("train and train_step are checked as fit is", function()
  for _, method in ipairs { "train { examples = train, per_device_batch_size = 8 }",
    "train_step { examples = train }" } do
    local text, n = cases[2][2]:gsub("fit {[^}]*}", (method:gsub("%%", "%%%%")))
    expect_equal(n, 1)
    local result = check(program.write("other.lua", text))
    expect_equal(names(result), "")
    expect_equal(result.examples.checked, 30)
  end
end)

test("each check has such a script", function()
  local has_case = {}
  for _, case in ipairs(cases) do has_case[case[1] or ""] = true end
  for _, row in ipairs(run.checks()) do
    assert(has_case[row.name], row.name)
    assert(row.level == "error" or row.level == "warning", row.name)
  end
end)

-- Those that train by a Trainer, with options that make their data smaller.
local examples = {
  { "digits/train.lua" }, { "digits/train.lua", "--model=mlp" }, { "digits/short.lua" },
  { "language_modeling/train.lua" }, { "language_modeling/train.lua", "--packing=bfd" },
  { "classification/train.lua" }, { "classification/train.lua", "--task=regression" },
  { "classification/train.lua", "--task=masked_lm" },
  { "text_to_text/train.lua", "--n-sentences=2000" }, { "image_to_text/train.lua", "--n-emoji=20" },
  { "image_to_text/questions.lua", "--n-emoji=20" },
  { "speech_to_text/train.lua", "--n-sequences=200" }, { "zero_shot/train.lua" },
  { "text_to_image/train.lua", "--vae-steps=2" }, { "meta_learning/train.lua" },
  { "meta_learning/train.lua", "--task=sines" }, { "private_training/train.lua" },
  { "private_training/train.lua", "--data=digits" }, { "reinforcement_learning/ppo.lua" },
  { "reinforcement_learning/ppo.lua", "--environment=Pendulum-v1" },
  { "reinforcement_learning/ddpg.lua" },
  { "reinforcement_learning/sums.lua", "--solved-steps=20" }, { "retrieval/train.lua" },
}

for _, words in ipairs(examples) do
  test("nothing is found in " .. table.concat(words, " "), function()
    local result = check(source .. "/examples/" .. words[1], unpack(words, 2))
    expect_equal(names(result), "")
    assert(#result.made >= 10, #result.made)
    expect_equal(#result.shown, 2)
  end)
end

test("nothing is found in chat/finetune and chat/preferences", function()
  local case, model = source .. "/tests/cases/llama3", program.folder .. "/model.gguf"
  gguf_files.write(model, gguf_files.add_byte_level(gguf_files.metadata(case), case),
    gguf_files.tensors(case, "F32"))
  local lines = {}
  for i = 1, 40 do lines[i] = ('{"question": "What is %d?", "answer": "the sea"}\n'):format(i) end
  local answers = program.write("answers.jsonl", table.concat(lines))
  local result = check(source .. "/examples/chat/finetune/train.lua", "--model=" .. model,
    "--data=" .. answers, "--n-samples=0")
  expect_equal(names(result), "")
  expect_has(result.shown[1].text, "«the sea")
  for i = 1, 40 do
    lines[i] = ('{"prompt": "What is %d?", "chosen": "the sea", "rejected": "no"}\n'):format(i)
  end
  result = check(source .. "/examples/chat/preferences/train.lua", "--model=" .. model,
    "--data=" .. program.write("pairs.jsonl", table.concat(lines)), "--n-samples=0")
  expect_equal(names(result), "")
  expect_has(result.shown[1].text, "chosen: ", "«the sea")
  expect_has(result.shown[2].text, "rejected: ", "«no")
end)

test("no example that trains is forgotten here", function()
  local is_listed = { ["chat/finetune/train.lua"] = true, ["chat/preferences/train.lua"] = true,
    ["cpp_embed/model.lua"] = true }  -- its host trains
  for _, words in ipairs(examples) do is_listed[words[1]] = true end
  local list, n = io.popen(("cd '%s/examples' && grep -rl 'redco.Trainer {' --include='*.lua' .")
    :format(source)), 0
  for path in list:lines() do
    n = n + 1
    assert(is_listed[path:sub(3)], path)
  end
  assert(n > 15, n)
end)

local function fit(model, train, collate_fn)
  redco.Trainer {
    deployer = redco.Deployer { seed = 1 }, params = model.params, loss_fn = model.loss_fn,
    collate_fn = collate_fn, optimizer = redco.optim.adamw { learning_rate = 1e-3 },
  }:fit { train_examples = train, per_device_batch_size = 4, n_epochs = 1 }
end

-- Trains a tiny model on its inputs.
local function train_tiny(name)
  local model, train = tiny_models.new(name), {}
  local inputs = tiny_models.inputs(name, model)
  for i = 1, 4 do
    train[i] = {}
    for key, value in pairs(inputs) do train[i][key] = value[i - 1] end
    if model.is_decoder then
      local ids = train[i].input_ids
      train[i].labels = torch.cat { ids:narrow(0, 1, ids:size(0) - 1), torch.tensor { -100 } }
    end
  end
  fit(model, train, redco.data.default_collate)
end

test("nothing is found in the families of models", function()
  local n = 0
  for _, name in ipairs(tiny_models.names()) do
    local result = check_call(train_tiny, name)
    if not (result.findings[1] or { where = "" }).where:find "has no loss" then
      n = n + 1
      if #result.findings > 0 then error(name .. ": " .. names(result), 0) end
    end
  end
  assert(n > 40, n)
end)

-- Conversations with a template, of which the tokenizer knows the markers.
local function train_chat(case, template)
  local tokenizer = redco.Tokenizer.from_pretrained(source .. "/tests/cases/" .. case)
  tokenizer.chat_template = template
  local special, records = {}, {}
  for marker in template:gmatch "<|?[%l_]+|?>" do
    if marker:find "|" or marker:find "_of_turn" then special[#special + 1] = marker end
  end
  tokenizer:add_special_tokens { additional_special_tokens = special }
  tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
  for i = 1, 12 do
    records[i] = { messages = { { role = "user", content = "What comes after " .. i .. "?" },
      { role = "assistant", content = "It is " .. i + 1 .. (" and so on"):rep(i % 3) } } }
  end
  local model = redco.models.from_config { model_type = "llama", vocab_size = #tokenizer,
    hidden_size = 16, intermediate_size = 16, num_hidden_layers = 1, num_attention_heads = 2,
    eos_token_id = tokenizer.eos_token_id, max_position_embeddings = 512 }
  fit(model, redco.data.conversations(records, { tokenizer = tokenizer, turns = "last" }),
    redco.data.padding_collate { pad_token_id = tokenizer.pad_token_id,
      return_attention_mask = case ~= "gpt2" })
end

test("nothing is found in conversations with other templates and tokenizers", function()
  local templates = data.json(source .. "/tests/cases/chat_templates/chat_templates.json").templates
  for name, template in pairs(templates) do
    for _, case in ipairs(name ~= "macros" and { "llama3", "gpt2", "llama" } or {}) do
      local result = check_call(train_chat, case, template)
      if #result.findings > 0 then error(name .. ", " .. case .. ": " .. names(result), 0) end
    end
  end
end)

-- As a user starts it.
local function find(expected)
  for _, case in ipairs(cases) do
    if case[1] == expected then return case[2] end
  end
end

test("an error is exit code 1; standard output has the report, examples with marks", function()
  program.write("doubled.lua", "print 'hello'\n" .. find "doubled_bos")
  local code, out, err = program.run { "check", "--examples", "3", "doubled.lua" }
  expect_equal(code, 1)
  expect_equal(err, "hello\nredco-lua: check: doubled.lua: 1 error, 0 warnings\n")
  expect_has(out, "doubled.lua: 24 of 24 training examples", "«The number 22 is next",
    "<|begin_of_text|><|begin_of_text|>", "error    doubled_bos: ", "24 of 24 (examples 1, 2, ",
    "checks made: 1 error, 0 warnings", "not made, no eval_examples: evaluation_is_training")
  assert(not out:find("hello", 1, true))
  local _, n_examples = out:gsub("\n +%d+  ", "")
  expect_equal(n_examples, 3)
  assert(os.execute(("test -e '%s/run'"):format(program.folder)) ~= 0, "a work folder is written")
end)

test("only warnings are exit code 0; --json is one document", function()
  program.write("copies.lua", "print 'hello'\n" .. find "duplicates")
  local code, out, err = program.run { "check", "--json", "copies.lua" }
  expect_equal(code, 0)
  expect_equal(err, "hello\n")
  program.write("report.json", out)
  local report = data.json(program.folder .. "/report.json")
  expect_equal(report.schema, 1)
  expect_equal(report.script, "copies.lua")
  expect_equal(report.n_warnings, 1)
  expect_equal(report.n_errors, 0)
  expect_equal(#report.shown, 10)
  local finding = report.findings[1]
  expect_equal(finding.name, "duplicates")
  expect_equal(finding.count, 2)
  expect_equal(finding.of, 24)
  expect_equal(finding.where, "examples 23, 24")
  assert(#report.made > 20 and report.skipped[1].reason)
end)

test("--rows takes examples from everywhere; arguments go to the script", function()
  program.write("plain.lua", "local n = ...\nassert(n == '--n=5')\n"
    .. cases[2][2])
  local code, out, err = program.run { "check", "--rows=10", "--examples=10", "plain.lua", "--n=5" }
  expect_equal(err, "")
  expect_equal(code, 0)
  expect_has(out, "10 of 30 training examples")
  local highest = 0
  for number in out:gmatch "\n +(%d+)  label" do highest = math.max(highest, tonumber(number)) end
  assert(highest > 25, highest)
end)

test("the report says which of several trainings it looked at", function()
  local text = cases[2][2]
  local _, line = text:sub(1, (text:find("}:fit", 1, true))):gsub("\n", "")
  program.write("two.lua", text)
  local _, out = program.run { "check", "two.lua" }
  expect_has(out, ("checked: the first training, at two.lua:%d\n"):format(line + 1))
  local other = [[redco.Trainer { deployer = deployer, params = { w = torch.ones { 1 } },
    collate_fn = collate_fn, loss_fn = loss_fn,
    optimizer = redco.optim.sgd { learning_rate = 1 } }]]
  program.write("two.lua", (text:gsub("redco.Trainer {", function(found)
    return other .. " " .. found
  end)))
  _, out = program.run { "check", "two.lua" }
  expect_has(out, ("checked: the first training, at two.lua:%d, not those of 1 further Trainer\n")
    :format(line + 3))
  _, out = program.run { "check", "--json", "two.lua" }
  program.write("report.json", out)
  local training = data.json(program.folder .. "/report.json").training
  expect_equal(training.n_trainers, 2)
  expect_equal(training.line, ("two.lua:%d"):format(line + 3))
end)

test("a script's own checks", function()
  program.write("own.lua", [[
require "redco".check.add {
  name = "short_answers", level = "error", title = "answers of a few tokens", advice = "write more",
  needs = { "labelled" },
  find = function(subject)
    local count = 0
    for _, row in ipairs(subject.labelled) do
      if #row.output < 100 then count = count + 1 end
    end
    return count, #subject.labelled, "the shortest ones"
  end,
}
]] .. cases[1][2])
  local code, out = program.run { "check", "own.lua" }
  expect_equal(code, 1)
  expect_has(out, "short_answers: answers of a few tokens: 24 of 24 (the shortest ones)")
  expect_equal(program.run { "own.lua" }, 0)  -- training does not care
  program.write("wrong.lua", cases[2][2]:gsub("^", [[
require "redco".check.add { name = "mine", title = "t", advice = "a",
  find = function(subject) return #subject.nothing end }
]]))
  local wrong, _, err = program.run { "check", "wrong.lua" }
  expect_equal(wrong, 1)
  expect_has(err, "check mine: ", "wrong.lua:2")
end)

test("a script that fails is a finding", function()
  program.write("fails.lua", find "script_fails")
  local code, out, err = program.run { "check", "--json", "fails.lua" }
  expect_equal(code, 1)
  expect_has(out, '"script_fails"', "fails.lua:10: the file is not there")
  expect_equal(err, "redco-lua: check: fails.lua: 1 error, 0 warnings\n")
end)

test("scripts without training, and wrong usage", function()
  program.write("idle.lua", "local redco = require 'redco'")
  local code, _, err = program.run { "check", "idle.lua" }
  expect_equal(code, 1)
  expect_has(err, "idle.lua ended without a Trainer:fit")
  local function is_wrong_usage(...)
    local found, _, message = program.run { ... }
    expect_equal(found, 2)
    return message
  end
  expect_has(is_wrong_usage "check", "give the script")
  expect_has(is_wrong_usage("check", "--nothing", "idle.lua"), "--nothing")
  expect_has(is_wrong_usage("check", "--rows", "0", "idle.lua"), "--rows")
  expect_has(is_wrong_usage("--nproc", "2", "check", "idle.lua"), "one process")
  expect_has(is_wrong_usage("check", "absent.lua"), "absent.lua")
end)

program.remove_folder()
testing.finish()
