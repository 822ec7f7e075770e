-- redco-lua generate and redco-lua chat write what model.generate returns; redco-lua evaluate
-- prints what redco.evaluate returns.
local program = require "program"
local redco = require "redco"
local testing = require "testing"

local test, expect_equal, expect_has = testing.test, testing.expect_equal, program.expect_has
local cases = os.getenv "REDCO_SOURCE" .. "/tests/cases/"
local llama = cases .. "llama"

-- The same model with a template that shows each message whole.
local chat = program.folder .. "/chat"
local tokenizer = redco.Tokenizer.from_pretrained(llama)
tokenizer.chat_template = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}"
  .. "{% if add_generation_prompt %}a:{% endif %}"
assert(os.execute(("cp -r '%s' '%s'"):format(llama, chat)) == 0)
tokenizer:save_pretrained(chat)
local model = redco.models.from_pretrained(llama)

-- Returns what the model writes after the tokens, at most n tokens, by greedy search.
local function greedy(prompt, n, params)
  local ids = model.generate(params or model.params,
    { input_ids = redco.torch.tensor({ prompt }, { dtype = "int64" }) },
    { max_new_tokens = n, do_sample = false })[0]
  return tokenizer:decode(ids:narrow(0, #prompt, ids:size(0) - #prompt),
    { skip_special_tokens = true })
end

local function expect_writes(expected, args, input)
  local code, out, err = program.run(args, input)
  assert(code == 0 and err == "", code .. " " .. err)
  expect_equal(out, expected)
end

local function expect_fails(expected_code, args, ...)
  local code, out, err = program.run(args, "a\n")
  expect_equal(code, expected_code)
  expect_equal(out, "")
  expect_has(err, ...)
  assert(not err:find "traceback" and not err:find "chat:%d" and not err:find "generate:%d"
    and not err:find "evaluate:%d" and not err:find "%.lua:%d", err)
end

local text = greedy(tokenizer:encode "the sea", 12)

test("generate continues an argument, or standard input", function()
  expect_writes(text .. "\n", { "generate", llama, "the sea", "--max-new-tokens", "12" })
  expect_writes(text .. "\n", { "generate", "--max_new_tokens=12", "--temperature=0", llama },
    "the sea\n")
end)

test("generate ends before a stop string, also one of several tokens", function()
  local stop = text:sub(9, 13)
  local first = text:find(stop, 1, true)
  expect_writes(text:sub(1, first - 1) .. "\n",
    { "generate", llama, "the sea", "--max-new-tokens=12", "--stop", stop, "--stop", "~~~" })
  -- Text that only begins like a stop string is written.
  expect_writes(text .. "\n",
    { "generate", llama, "the sea", "--max-new-tokens=12", "--stop", text:sub(-2) .. "~" })
end)

test("samples depend on the seed alone", function()
  local function sample(seed)
    local code, out, err = program.run { "generate", llama, "the sea", "--temperature=2",
      "--top-p=0.9", "--max-new-tokens=12", "--seed", seed }
    assert(code == 0 and err == "", err)
    return out
  end
  local first = sample "1"
  expect_equal(sample "1", first)
  assert(sample "2" ~= first and text .. "\n" ~= first)
end)

test("generate takes a folder of adapters", function()
  local adapters = cases .. "lora_llama"
  local params = redco.lora.from_pretrained(adapters, model.params)
  local changed = greedy(tokenizer:encode "the sea", 12, params)
  assert(changed ~= text)
  expect_writes(changed .. "\n", { "generate", adapters, "the sea", "--max-new-tokens=12" })
  expect_writes(changed .. "\n",
    { "generate", adapters, "the sea", "--max-new-tokens=12", "--base", llama })
end)

test("chat keeps the conversation, until /reset", function()
  local messages = { { role = "system", content = "S" } }
  local function turn(content)
    messages[#messages + 1] = { role = "user", content = content }
    local answer = greedy(
      tokenizer:apply_chat_template(messages, { add_generation_prompt = true }), 4)
    messages[#messages + 1] = { role = "assistant", content = answer }
    return answer .. "\n"
  end
  local first, second = turn "the\nsea", turn "c"
  messages = { { role = "system", content = "S" } }
  local third = turn "c"
  assert(third ~= second, "the history changes nothing")
  local args = { "chat", chat, "--system", "S", "--max-new-tokens=4" }
  expect_writes(first .. second .. third, args, "the\\\nsea\n\nc\n/reset\nc\n/exit\nd\n")
  expect_writes(third, args, "c")
end)

-- ---- evaluate ----

local tasks = os.getenv "REDCO_SOURCE" .. "/examples/evaluation/"
local arc = tasks .. "arc_easy.toml"

-- The scores that a command prints, by metric.
local function scores_of(args)
  local code, out, err = program.run(args)
  assert(code == 0, err)
  local scores = {}
  for line in out:gmatch "[^\n]+" do
    local metric, value, stderr = line:match "(%S+) +(%S+) +(%S+)$"
    scores[metric] = value .. " " .. stderr
  end
  return scores, err
end

local function expected_scores(given, params)
  given.deployer = redco.Deployer { seed = 0, verbose = false }
  given.model, given.params, given.tokenizer = model, params or model.params, tokenizer
  local found, scores = redco.evaluate(given), {}
  for _, result in pairs(found.results) do
    for name, value in pairs(result) do
      local metric = name:match "^(.*),none$"
      local stderr = metric and result[metric .. "_stderr,none"]
      if stderr then
        scores[metric] = ("%.4f %s"):format(value,
          stderr == "N/A" and stderr or ("%.4f"):format(stderr))
      end
    end
  end
  return scores
end

local function expect_scores(found, expected)
  local n = 0
  for metric, score in pairs(expected) do
    expect_equal(found[metric], score)
    n = n + 1
  end
  assert(n > 0)
end

test("evaluate prints scores, with its flags, of folders and adapters", function()
  local found, err = scores_of { "evaluate", llama, arc, tasks .. "wikitext.lua" }
  expect_equal(err, "")
  expect_scores(found, expected_scores { tasks = { arc, tasks .. "wikitext.lua" } })
  local _, told = scores_of { "evaluate", llama, arc, "--num-fewshot=1", "--max-length", "40" }
  expect_has(told, "lost their beginnings", "40 tokens")
  expect_scores(scores_of { "evaluate", llama, arc, "--num_fewshot=1", "--limit=7", "--seed", "3",
    "--batch-size", "3" },
    expected_scores { tasks = { arc }, num_fewshot = 1, limit = 7, seed = 3 })
  expect_scores(scores_of { "evaluate", cases .. "lora_llama", arc },
    expected_scores({ tasks = { arc } },
      redco.lora.from_pretrained(cases .. "lora_llama", model.params)))
  expect_equal(scores_of({ "--nproc", "2", "evaluate", llama, "--n-model-shards=2",
    tasks .. "wikitext.lua" }).bits_per_byte, found.bits_per_byte)
end)

test("evaluate writes the files of results, and prompts by the chat template", function()
  local code, _, err = program.run { "evaluate", chat, arc, "--apply-chat-template", "--limit", "2",
    "--output", "scores", "--log-samples" }
  assert(code == 0, err)
  local _, names = program.shell "cat scores/samples_arc_easy_*.jsonl"
  expect_has(names, [["arg_0":"u:Question: Which of these animals has feathers?\nAnswer:;a:"]],
    [["arg_1":"a sparrow"]])
  local _, results = program.shell "cat scores/results_*.json"
  expect_has(results, '"n-samples"', '"effective": 2')
end)

test("data that does not fit is exit code 1, with what to do", function()
  expect_fails(1, { "evaluate", llama, "nowhere.toml" }, "nowhere.toml")
  expect_fails(1, { "evaluate", llama, "hellaswag" }, "expected files .toml or .lua", "hellaswag")
  expect_fails(1, { "evaluate", llama, arc, "--apply-chat-template" }, "no chat_template")
  expect_fails(1, { "evaluate", llama, arc, "--num-fewshot=10" }, "num_fewshot is 10")
  expect_fails(1, { "evaluate", cases .. "bert", arc }, "BertForMaskedLM")
  expect_fails(1, { "evaluate", llama, arc, "--limit=0" }, "limit")
  expect_fails(1, { "chat", llama }, "no chat template", "redco-lua generate")
  expect_fails(1, { "generate", cases .. "bert" }, "BertForMaskedLM", "writes no text")
  expect_fails(1, { "generate", cases .. "whisper", "a" }, "reads input_features and no text")
  expect_fails(1, { "generate", cases .. "vit", "a" }, "no tokenizer", "vit is a model of images")
  expect_fails(1, { "generate", cases .. "gpt2", "" }, "the prompt is empty")
  expect_fails(1, { "generate", "nowhere" }, "no file or folder nowhere here")
  expect_fails(1, { "generate", "nowhere.gguf" }, "there is no file or folder nowhere.gguf")
  expect_fails(1, { "generate", llama, "--base", llama }, "adapter_config.json")
  expect_fails(1, { "generate", llama, ("the sea "):rep(60) }, "at most 64")
  expect_fails(1, { "chat", chat, "--system", ("the sea "):rep(60) }, "at most 64")
  program.shell("mkdir -p nameless")
  program.write("nameless/adapter_config.json", "{}")
  expect_fails(1, { "generate", "nameless" }, "--base PATH")
end)

test("wrong usage is exit code 2", function()
  expect_fails(2, { "chat" }, "PATH")
  expect_fails(2, { "generate", llama, "a", "--temperature", "-1" }, "--temperature")
  expect_fails(2, { "generate", llama, "a", "--top-p", "2" }, "--top-p", "0 to 1")
  expect_fails(2, { "generate", llama, "a", "--max-new-tokens", "1.5" }, "a whole number")
  expect_fails(2, { "generate", llama, "a", "--seed", "x" }, "--seed")
  expect_fails(2, { "generate", llama, "a", "--dtype", "int8" }, "--dtype")
  expect_fails(2, { "generate", llama, "a", "--stop", "" }, "--stop")
  expect_fails(2, { "generate", llama, "--system", "S" }, "--system")
  expect_fails(2, { "--nproc", "2", "chat", chat }, "one process")
  expect_fails(2, { "evaluate", llama }, "TASK")
  expect_fails(2, { "evaluate", llama, arc, "--seed=4294967296" }, "4294967295")
  expect_fails(2, { "evaluate", llama, arc, "--temperature=1" }, "--temperature")
end)

program.remove_folder()
testing.finish()
