local redco = require "redco"
local registry = require "redco.registry"
local testing = require "testing"

local help, torch = redco.help, redco.torch
local test, expect_equal = testing.test, testing.expect_equal

local function expect_text(x, ...)
  local text = help.text(x)
  assert(text, "no text")
  for _, part in ipairs { ... } do
    assert(text:find(part, 1, true), ("expected %q in:\n%s"):format(part, text))
  end
  return text
end

-- What `help(...)` prints.
local function printed(...)
  local lines, print_before = {}, print
  rawset(_G, "print", function(...) lines[#lines + 1] = table.concat({ ... }, "\t") end)
  local ok, message = pcall(help, ...)
  rawset(_G, "print", print_before)
  assert(ok, message)
  return table.concat(lines, "\n")
end

test("a function by value, by its full name and by the end of it", function()
  local text = expect_text(redco.nn.layer_norm, "redco.nn.layer_norm(params, x, {eps = 1e-5})",
    "Ba et al")
  expect_equal(help.text "redco.nn.layer_norm", text)
  assert(help.text("nn.layer_norm"):find(text, 1, true))
end)

test("an operator by value, as a function, as a method and by its bare name", function()
  local text = expect_text(torch.matmul, "torch.matmul", "matmul(self: Tensor, other: Tensor)",
    "matmul(Tensor self, Tensor other) -> Tensor")
  expect_equal(help.text "torch.matmul", text)
  assert(help.text("matmul"):find(text, 1, true))
  local method = expect_text("Tensor:sum", "Tensor:sum: an operator", "{keepdim: boolean",
    "the tensor before the colon")
  expect_equal(help.text(torch.zeros { 1 }.sum), method)
  expect_equal(help.text "Tensor.sum", method)
  assert(not text:find "out: Tensor", "calls that are given their results")
end)

test("a method of a class, and words that several have", function()
  expect_text("fit", "Trainer:fit({train_examples", "early_stopping: {metric")
  expect_text("dtype", "Tensor.dtype: string", "See also")
  expect_text("linear", "redco.nn.linear(", "the operator torch.linear")
end)

test("objects: their class with its methods", function()
  expect_text(torch.zeros { 1 }, "Tensor\n", "backward(gradient, {...})", "shape: list of")
  expect_text(torch.Tensor, "Tensor\n")
  local deployer = redco.Deployer { seed = 1, verbose = false }
  expect_text(deployer, "Made by redco.Deployer", "log_metrics(")
  expect_text(redco.data.dataset(1, print), "Dataset", "slice(first, last)")
  expect_text("Tokenizer", "tokenizer(texts, {...})")
  local model = redco.models.from_pretrained "../cases/gpt2"
  expect_text(model, "Model {params", "generate(params, inputs, {...})")
  expect_text(model.generate, "Model.generate(", "num_beams = 1")
  expect_text(redco.models.new_cache(), "Cache {length}")
end)

test("modules: what is in them, a line each", function()
  local text = expect_text(redco.metrics, "redco.metrics\nScores",
    "rouge(predictions, references, {...})")
  expect_equal(help.text "redco.metrics", text)
  for _, name in ipairs { "torch", "redco", "redco.nn.init", "torch.autograd" } do
    expect_text(name, name .. "\n")
  end
end)

test("no text for anything else", function()
  for _, x in ipairs { "nothing_like_it", "", ":", "torch.", "torch.nothing", 1, true,
    print, {}, setmetatable({}, { __name = "nothing" }), io.stdout, 1LL,
    coroutine.create(print), function() end } do
    expect_equal(help.text(x), nil)
    expect_equal(#help.arguments(x), 0)
    assert(printed(x):find "^there is no help for ", printed(x))
  end
  expect_equal(help.text(nil), nil)
  assert(printed(nil):find "no help for nil")
end)

test("words: entries with them in their names, arguments and texts", function()
  local function expect_found(query, ...)
    local text = printed(query)
    for _, part in ipairs { ... } do assert(text:find(part, 1, true), text) end
    for line in text:gmatch "[^\n]+" do assert(#line <= 80, line) end
  end
  expect_found("clip", "torch.clip: an operator of ATen", "redco.optim.clip_by_global_norm")
  expect_found("learning rate", "there is no help for 'learning rate'; these mention it:",
    "redco.optim.adamw", "Deployer:get_lr_schedule_fn")
  expect_found("loss_fn", "Model.loss_fn", "redco.Trainer")
  expect_found("gradient clipping", "redco.optim.clip_by_global_norm")
  expect_found("tokenizer chat", "Tokenizer:apply_chat_template")
  expect_found("global_norm", "redco.optim.clip_by_global_norm")
  expect_found("gradient accumulation", "redco.Trainer")
  expect_found("how do I save a model", "Model.save_pretrained")
  expect_equal(help.search "how do I", nil)
  expect_equal(help.search "no such words at all", nil)
  expect_equal(help.search "", nil)
end)

test("unknown names: the nearest", function()
  assert(printed("matmull"):find("matmul", 1, true))
  assert(printed("torch.matmull"):find("similar names: matmul", 1, true))
  assert(printed("cross_entropi"):find("cross_entropy", 1, true))
  assert(printed("softma"):find("softmax", 1, true))
end)

test("the sections about words are there", function()
  for _, topic in ipairs(require "redco.reference.topics".list) do
    local page = redco.data.read(("%s/docs/%s.md"):format(os.getenv "REDCO_SOURCE", topic[1]))
    assert(page:find("#+ " .. topic[2] .. "\n"), topic[2])
  end
end)

test("help() lists all modules and classes", function()
  local text = printed()
  for _, page in ipairs(require "redco.reference.surface".pages) do
    for i = 2, #page do assert(text:find("\n  " .. page[i] .. " ", 1, true), page[i]) end
  end
end)

test("the names of named arguments", function()
  expect_equal(table.concat(help.arguments(redco.nn.attention), " "),
    "mask causal segment_ids window dropout train rng scale softcap sinks enable_gqa")
  expect_equal(help.arguments("fit")[1], "train_examples")
  expect_equal(table.concat(help.arguments(redco.optim.sgd), " "),
    "learning_rate momentum dampening nesterov weight_decay mask")
  expect_equal(#help.arguments(redco.optim.chain), 0)
  expect_equal(#help.arguments(torch.no_grad), 0)
  local names = " " .. table.concat(help.arguments(torch.sum), " ") .. " "
  for _, name in ipairs { "dim", "keepdim", "dtype", "out" } do
    assert(names:find(" " .. name .. " ", 1, true), names)
    expect_equal(select(2, names:gsub(" " .. name .. " ", "")), 1)
  end
end)

test("no line is longer than 80 columns but for a word that is", function()
  local names = registry.names()
  for _, name in ipairs(torch.operators()) do names[#names + 1] = "torch." .. name end
  for _, name in ipairs(names) do
    for line in assert(help.text(name), name):gmatch "[^\n]+" do
      assert(#line <= 80 or not line:find "%S%s+%S", name .. ": " .. line)
    end
  end
end)

test("a function has one name", function()
  local function f() end
  registry.define("spec.first", "first()", f)
  testing.expect_error(function() registry.define("spec.second", "second()", f) end,
    "spec.second is registered as spec.first already")
end)

testing.finish()
