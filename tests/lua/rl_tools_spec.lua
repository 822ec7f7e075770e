-- Tools in the samples of redco.rl.language: calls, answers, what is trained, limits and errors.
local policies = require "calling_policy"
local redco = require "redco"
local testing = require "testing"
local tools = require "redco.rl.language.tools"

local language = redco.rl.language
local test, expect_equal = testing.test, testing.expect_equal
local deployer = redco.Deployer { seed = 1, verbose = false }
local model, tokenizer = policies.new()

local function sampler_of(more)
  local all = { model = model, tokenizer = tokenizer, deployer = deployer, seed = 3,
    examples = { { prompt = { { role = "user", content = "look" } }, secret = 7 } },
    tools = { look = function(arguments) return 10 * arguments.n end },
    rewards = { mine = function(_, _, sample) return sample.n_calls end },
    num_prompts = 4, num_generations = 4, max_completion_length = 120 }
  for name, value in pairs(more or {}) do all[name] = value end
  return language.sampler(all)
end

local function trainer_of(sampler, loss)
  return redco.Trainer { deployer = deployer, custom_state = sampler.state,
    params = redco.tree.map(function(p) return p:detach():clone() end, model.params),
    optimizer = redco.optim.adamw { learning_rate = 1e-3 }, collate_fn = sampler.collate_fn,
    loss_fn = sampler:loss_fn(loss or {}) }
end

-- Returns the samples of one rollout.
local function samples_of(more)
  local found
  local all = { on_rollout = function(list) found = list end }
  for name, value in pairs(more or {}) do all[name] = value end
  local sampler = sampler_of(all)
  sampler:rollout(trainer_of(sampler), 0)
  return found, sampler
end

test("a call is answered, and the conversation goes on", function()
  local list, sampler = samples_of()
  local n_calls, n_without = 0, 0
  for i, sample in ipairs(list) do
    local messages, n = sample.messages, 0
    for k, message in ipairs(messages) do
      if message.tool_calls then
        n = n + 1
        expect_equal(message.tool_calls[1]["function"].arguments.n, policies.argument)
        local next_message = messages[k + 1]
        if next_message then
          expect_equal(next_message.role, "tool")
          expect_equal(next_message.content, tostring(10 * policies.argument))
        end
      end
    end
    n_calls, n_without = n_calls + sample.n_calls, n_without + (n == 0 and 1 or 0)
    expect_equal(sample.reward, sample.n_calls)
    -- The tokens are those that the template would make of the conversation.
    local text = tokenizer:decode(sample.tokens)
    local answers = select(2, text:gsub("tool: " .. 10 * policies.argument, ""))
    expect_equal(answers, sample.n_calls)
    -- Only the policy's tokens have labels.
    local own, first = sampler.state.tensors.labels[i - 1]:tolist(), #sample.prompt - 1
    for k, token in ipairs(sample.tokens) do
      expect_equal(own[first + k], sample.logprobs[k] and token or -100)
      if not sample.logprobs[k] then
        expect_equal(sampler.state.tensors.old_logps[i - 1][first + k - 1]:item(), 0)
      end
    end
    assert(#sample.tokens <= 120)
  end
  assert(n_calls > 4 and n_without > 0, ("%d calls, %d without"):format(n_calls, n_without))
  local metrics = sampler.state.tensors.metrics
  assert(math.abs(metrics["tools/call_frequency"]:mean():item() - n_calls / #list) < 1e-9)
  expect_equal(metrics["tools/failure_frequency"][0]:item(), 0)
  -- The policy's forward pass over the whole conversation gives the probabilities of its turns.
  assert(metrics["sampling/sampling_logp_difference/max"][0]:item() < 1e-4)
end)

test("a run trains on conversations", function()
  local sampler = sampler_of()
  local trainer = trainer_of(sampler, { loss_type = "dapo" })
  local steps = {}
  trainer:fit { per_device_batch_size = 16, n_epochs = 4,
    train_examples = function(epoch_idx) return sampler:rollout(trainer, epoch_idx) end,
    on_step = function(event) steps[#steps + 1] = event.metrics end }
  expect_equal(steps[1].logprob_difference, 0)
  assert(steps[4]["tools/call_frequency"] > steps[1]["tools/call_frequency"])
end)

test("limits of turns and of tokens end a conversation", function()
  local n_cut = 0
  for _, sample in ipairs((samples_of { max_tool_calling_iterations = 1 })) do
    local last, n_turns = sample.messages[#sample.messages], 0
    for _, message in ipairs(sample.messages) do
      n_turns = n_turns + (message.role == "assistant" and 1 or 0)
    end
    assert(n_turns <= 2 and last.role == "assistant")
    local is_cut = sample.finish_reason == "tool_calls"
    expect_equal(is_cut, n_turns == 2 and last.tool_calls ~= nil
      and sample.tokens[#sample.tokens] == tokenizer.eos_token_id)
    n_cut = n_cut + (is_cut and 1 or 0)
  end
  assert(n_cut > 0)
  local n_dropped = 0
  for _, sample in ipairs((samples_of { max_completion_length = 12 })) do
    assert(#sample.tokens <= 12)
    local last = sample.messages[#sample.messages]
    expect_equal(last.role, "assistant")
    if last.tool_calls and sample.finish_reason == "length" then n_dropped = n_dropped + 1 end
  end
  assert(n_dropped > 0)
end)

test("errors of tools go to the model or end the run", function()
  local function failing() error "the shelf is empty" end
  local list, sampler = samples_of { tools = { look = { call = failing } },
    max_completion_length = 250 }
  local n = 0
  for _, sample in ipairs(list) do
    expect_equal(sample.n_failures, sample.n_calls)
    for _, message in ipairs(sample.messages) do
      if message.role == "tool" then
        n = n + 1
        assert(message.content:find('{"error":"look: rl_tools_spec.lua:%d+: the shelf is empty"}'),
          message.content)
      end
    end
  end
  assert(n > 0)
  expect_equal(sampler.state.tensors.metrics["tools/failure_frequency"][0]:item(), 1)
  list = samples_of { tools = { seek = failing }, max_completion_length = 250 }
  for _, sample in ipairs(list) do
    for _, message in ipairs(sample.messages) do
      if message.role == "tool" then
        expect_equal(message.content, '{"error":"there is no tool \'look\'"}')
      end
    end
  end
  local function refuse(f, ...)
    testing.expect_error(function()
      samples_of { tools = { look = f }, tool_errors = "raise", reward_seconds = 0.2 }
    end, "the tool 'look' of example 1, prompt ", ...)
  end
  refuse(failing, "rl_tools_spec.lua", "the shelf is empty")
  refuse(function() end, "expected a text, a number, a boolean or a table to be returned, got nil")
  refuse(function() while true do end end, "it ran longer than reward_seconds")
end)

test("the text between turns is that of the chat template", function()
  local own = redco.Tokenizer.from_pretrained(os.getenv "REDCO_SOURCE" .. "/tests/cases/llama")
  own:add_special_tokens { additional_special_tokens = { "<end>" } }
  local is_end = { [own:encode("<end>", { add_special_tokens = false })[1]] = true }
  local call = { id = "call00001", type = "function",
    ["function"] = { name = "look", arguments = { n = 3 } } }
  local messages = { { role = "user", content = "other" },
    { role = "assistant", content = "", tool_calls = { call } },
    { role = "tool", name = "look", tool_call_id = call.id, content = "one" },
    { role = "tool", name = "look", tool_call_id = call.id, content = "two" } }
  local function between(opening, ending, after)
    own.chat_template = "{% for m in messages %}{{ m.role }}: "
      .. "{% if m.role == 'assistant' %}" .. opening .. "{% endif %}{{ m.content }}"
      .. "{% if m.tool_calls %}{{ m.tool_calls[0].function | tojson }}{% endif %}"
      .. ending .. "{% endfor %}{% if add_generation_prompt %}" .. after .. "{% endif %}"
    return own:decode(tools.tokens_between({ tokenizer = own, is_end = is_end,
      tools = { variables = {} } }, "sampler", messages))
  end
  local function expect(found, expected) expect_equal(found:gsub("%s", ""), expected) end
  expect(between("", "<end>\n", "assistant: "), "tool:one<end>tool:two<end>assistant:")
  -- The last turn is written otherwise.
  expect(between("{% if loop.last %}hm{% endif %}", "<end>\n", "assistant: "),
    "tool:one<end>tool:two<end>assistant:")
  -- No token ends a turn.
  expect(between("", ".\n", "assistant: "), "tool:one.tool:two.assistant:")
  testing.expect_error(function() between("{% if loop.last %}hm{% endif %}", ".\n", "") end,
    "answers of tools do not follow the text of the call")
end)

test("what tools refuse", function()
  local function refuse(text, more)
    testing.expect_error(function() samples_of(more) end, text)
  end
  refuse("tools: expected a table {name = function}, got an empty one", { tools = {} })
  refuse("tools.look: expected a function, or a table with a function", { tools = { look = 3 } })
  refuse("tool_errors: expected", { tool_errors = "ignore" })
  refuse("tools need a list of messages", { examples = { { prompt = "look" } } })
  local template = tokenizer.chat_template
  tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
  refuse("the model's chat template takes no tools", {})
  tokenizer.chat_template = template
end)

testing.finish()
