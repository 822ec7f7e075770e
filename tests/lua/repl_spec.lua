-- The prompt's core: what is a chunk, how values look, what may be typed next. It does no I/O, and
-- is called here as by a terminal.
local redco_help = require "redco.help"
local session = require("redco.repl.session").new { width = 80 }
local testing = require "testing"

local test, expect_equal = testing.test, testing.expect_equal

--- Returns the answer of a prompt to these lines: all but the last must leave the chunk incomplete.
local function answer(...)
  local lines = { ... }
  for i = 1, #lines - 1 do expect_equal(session:feed(lines[i]), "more") end
  local status, chunk = session:feed(lines[#lines])
  expect_equal(status, "chunk")
  return session:run(chunk)
end

local function expect_text(text, ...)
  local given = answer(...)
  expect_equal(given.message, nil)
  expect_equal(given.text, text)
end

local function expect_message(message, ...)
  local given = answer(...)
  expect_equal(given.message, message)
  expect_equal(given.text, nil)
  return given.traceback
end

local function completed(line, prefix)
  local start, found = session:complete(line, #line)
  expect_equal(line:sub(start), prefix)
  return table.concat(found, " ")
end

test("values of expressions are answers, also with = before them, not with ; behind", function()
  expect_text("2", "1 + 1")
  expect_text("2", "=1 + 1")
  expect_text("2", "return 1 + 1")
  expect_text("1\ntwo\nnil", "1, 'two', nil")
  expect_text(nil, "1 + 1;")
  expect_text(nil, "x = 5")
  expect_text("5", "x")
  expect_text("nil", "undeclared")
  expect_text(nil, "(function() end)()")
  expect_text(nil, "-- nothing")
  expect_text(nil, "")
  expect_text("9007199254740992\n-4503599627370497\n0.5\n1e+300\ninf",
    "2^53, -2^52 - 1, 1/2, 1e300, 1/0")
  expect_text("{ 9007199254740992, a = 0.33333333333333 }", "{ 2^53, a = 1/3 }")
  expect_text("a\nb", "'a\\nb'")
end)

test("an expression after statements is an answer", function()
  expect_text("tensor([1., 1.])\n[float32 [2]]", "x = torch.ones(2); x")
  expect_text("4", "local y = 2; y * 2")
  expect_text(nil, "x = 5; x;")
  expect_text("a;b", "x = 'a;b'; x")
  expect_text("1\n2", "x = 1; x, 2 -- a comment; and more")
  expect_text(nil, "x = 1; y = 2")
  expect_text("3", "x = 3\nx")
  expect_text(nil, "x = 7\n- 2")  -- one statement
  expect_text("10", "function pasted(x)\n  return 2 * x\nend\npasted(5)")
  expect_text("6", "y = pasted\npasted (3)")
  expect_text(nil, "pasted(1)\npasted(2);")
  expect_text("5", "x")
  expect_text("{ 1, a = 2 }", "{ 1; a = 2 }")
  expect_equal(session:feed "x = 1; f(", "more")
  expect_equal(session:forget(), "x = 1; f(")
  expect_message("stdin:1: attempt to index global 'nothing' (a nil value)", "x = 1; nothing.y")
  expect_message("stdin:2: attempt to index global 'nothing' (a nil value)",
    "x = 1\nnothing.y + 1")
end)

test("_ is the last value", function()
  answer "6 * 7"
  expect_text("43", "_ + 1")
  answer "x = 1"
  expect_text("43", "_")
end)

test("a chunk goes on until it is complete", function()
  expect_text("6", "1 +", "2 +", "3")
  expect_text("{ 1, 2 }", "{", "1,", "2 }")
  expect_text("a\nb", "[[a", "b]]")
  expect_text("1", "1 --[[ a", "comment ]]")
end)

test("what was fed of a chunk can be forgotten", function()
  expect_equal(session:feed "for i = 1, 2 do", "more")
  expect_equal(session:feed "  print(i)", "more")
  expect_equal(session:forget(), "for i = 1, 2 do\n  print(i)")
  expect_equal(session:forget(), nil)
  expect_text("1", "1")
end)

test("several lines at once are one chunk", function()
  expect_text("10", "local a = 5\nlocal b = 2\nreturn a * b")
end)

test(":q ends, commands are none inside of a chunk", function()
  expect_equal(session:feed ":q", "quit")
  expect_equal(session:feed "t = {", "more")
  expect_equal(session:feed ":q", "chunk")  -- and an error of syntax
  assert(answer(":h").text:find ":q +ends the prompt")
  expect_message(":x: there are :h and :q", ":x")
end)

test("a local is gone after its chunk, which is said once", function()
  assert(answer("local gone = 1").hint:find "^gone is gone")
  expect_equal(answer("local gone = 1").hint, nil)
  expect_text("nil", "gone")
end)

test("nn and optim are globals of the prompt", function()
  expect_text("true", "nn == redco.nn and optim == redco.optim and torch == redco.torch")
end)

test("exit and other names without a value say what to write", function()
  expect_text("exit is nil; :q or Ctrl-D ends the prompt, os.exit() a script", "exit")
  expect_text("len is nil; #x is the length of a list, x:size(0) that of a tensor", " len")
  expect_text("nil", "nothing")
  expect_text("1", "len = 1; len")
end)

test("help by name and by words, which may be long", function()
  local function expect_help(line, ...)
    local given = answer(line)
    expect_equal(given.message, nil)
    assert(given.is_help)
    for _, part in ipairs { ... } do
      assert(given.text:find(part, 1, true), given.text)
    end
  end
  expect_help("?redco.nn.linear", "linear(params")
  expect_help("?clip", "torch.clip: an operator", "redco.optim.clip_by_global_norm")
  expect_help("?loss_fn", "Model.loss_fn(", "See also ", "redco.Trainer")
  expect_help("?learning rate", "redco.optim.adamw")
  expect_help("??clip", "these mention 'clip':", "redco.optim.clip_by_global_norm")
  expect_help("?? learning rate", "these mention it:")
  expect_help("?plot", 'In the documentation: docs/runs.md, "Options and the work folder".')
  expect_help("?checkpoint", "redco.checkpoint(", 'docs/runs.md, "Checkpoints".')
  expect_help("?resume", 'docs/runs.md, "Checkpoints".')
  assert(answer("help").text:find("help() lists all modules", 1, true))
  expect_help("help 'learning rate'", "these mention it:", "redco.optim.adamw")
  expect_help("help(redco.nn.linear)", "linear(params")
  expect_help("help()", "Modules and classes")
  expect_help("for _, name in ipairs { 'fit', 'adamw' } do help(name) end", "Trainer:fit(",
    "redco.optim.adamw")
  expect_equal(answer("1").is_help, nil)
  expect_message("there is no help for 'xylograph'", "?xylograph")
end)

test("an error has its place, and the user's frames where there are several", function()
  expect_equal(expect_message("stdin:1: mine", "error 'mine'"), nil)
  expect_equal(expect_message("stdin:2: mine", "do", "error 'mine' end"), nil)
  expect_message("stdin:1: a Tensor has no 'nothing'", "torch.ones{2}.nothing")
  expect_message("stdin:1: mine", "error 'mine' -- with a comment")
  expect_equal(expect_message("stdin:1: '=' expected near 'y'", "x y"), nil)
  expect_equal(expect_message("stdin:1: unfinished string near ''abc'", "'abc"), nil)
  answer "function inner() error 'deep' end"
  answer "function outer() inner() end"
  expect_equal(expect_message("stdin:1: deep", "outer()"),
    "\tstdin:1: in function 'inner'\n\tstdin:1: in function 'outer'\n\tstdin:1: in main chunk")
  local traceback = expect_message("stdin:1: in it",
    "redco.checkpoint(function() error 'in it' end)")
  assert(traceback:find "stdin:1: in function" and not traceback:find "%[C%]", traceback)
  traceback = expect_message("stdin:1: in it",
    "redco.tree.map(function() error 'in it' end, { 1 })")
  assert(traceback and not traceback:find "redco/", traceback)
  assert(answer("torch.zeros{2}:matmul(torch.zeros{3})").message:find "^stdin:1: Tensor:matmul")
  expect_message("an error value that is not text: table {code = 3}", "error { code = 3 }")
end)

test("globals named as Lua's own break nothing but the user's", function()
  local names = { "type", "table", "string", "next", "tostring", "setmetatable", "print" }
  local before = {}
  for _, name in ipairs(names) do before[name] = _G[name] end
  answer(table.concat(names, ", ") .. " = 1")
  local given = {}
  for i, line in ipairs { "{ a = 1 }", "type(1)", "who()", "?redco.nn.linear" } do
    given[i] = answer(line)
  end
  for name, value in pairs(before) do rawset(_G, name, value) end
  expect_equal(given[1].text, "{ a = 1 }")
  expect_equal(given[2].message, "stdin:1: attempt to call global 'type' (a number value)")
  assert(given[3].text:find "type +number +1", given[3].text)
  assert(given[4].text:find "linear%(", given[4].text)
end)

test("tensors are shown with their elements and what they are", function()
  expect_text("tensor([[0, 1, 2],\n        [3, 4, 5]])\n[int64 [2, 3]]",
    "torch.arange(6):view{2, 3}")
  expect_text("tensor([1., 1.], requires_grad=True)\n[float32 [2], requires_grad]",
    "torch.ones{2}:requires_grad_()")
  expect_text("{ loss = tensor(0.5000), x = float64 [2, 0] }",
    "{ x = torch.zeros({2, 0}, { dtype = 'float64' }), loss = torch.tensor(0.5) }")
end)

test("tables are trees with sorted keys that know their limits", function()
  expect_text("{}", "{}")
  expect_text('{ 1, 2, [2.5] = true, a = "x\\ny", ["b c"] = "\\"", ["end"] = 2 }',
    [[{ 1, 2, a = "x\ny", ["b c"] = '"', ["end"] = 2, [2.5] = true }]])
  expect_text('{\n  long = "' .. ("x"):rep(80) .. '",\n  lower = { a = { b = { { ... 2 } } } }\n}',
    "{ lower = { a = { b = { { c = 1, 2 } } } }, long = ('x'):rep(80) }")
end)

test("long lists fill lines, long tables are cut", function()
  answer "ids = {} for i = 1, 150 do ids[i] = i * 1000 end"
  local text = answer("ids").text
  assert(text:find "^{\n  1000, 2000, 3000, ", text)
  assert(text:find "100000,\n  %.%.%. 50 more\n}$", text)
  for line in text:gmatch "[^\n]+" do assert(#line <= 80, line) end
  expect_text('{\n  "' .. ("x"):rep(200) .. '"... (500 bytes)\n}', "{ ('x'):rep(500) }")
  expect_text(("x"):rep(20000), "('x'):rep(20000)")
  expect_text(("x"):rep(19999) .. "... (30001 bytes; print(_) prints all)",
    "('x'):rep(19999) .. 'ä' .. ('x'):rep(10000)")
  answer "deep = {} for i = 1, 100 do deep[i] = {} for j = 1, 100 do deep[i][j] = { j } end end"
  local _, n = answer("deep").text:gsub("\n", "\n")
  assert(n <= 100, n)
end)

test("a module is shown by its own names", function()
  local text = answer("redco").text
  local _, n = text:gsub("\n", "\n")
  assert(n <= 100 and text:find("\n  nn = { ... ", 1, true), text)
end)

test("cycles end, shared tables do not", function()
  answer "ring = { name = 'a' } ring.ring = { ring }"
  expect_text('{ name = "a", ring = { <cycle> } }', "ring")
  expect_text("{ a = { 1 }, b = { 1 } }", "(function(t) return { a = t, b = t } end) { 1 }")
end)

test("functions show their signatures, objects their methods, others their own text", function()
  expect_text("function redco.tree.count(tree) -> number", "redco.tree.count")
  assert(answer("torch.mm").text:find("^function torch%.mm%(Tensor self, Tensor mat2%) %-> Tensor"))
  expect_text("{ function (a, b, ...) stdin:1 }", "{ function(a, b, ...) end }")
  local define = require "redco.registry".define
  _G.of_many = define("spec.of_many", "of_many{a,\n    b = 1} -> c\nDoes nothing.", function() end)
  expect_text("function spec.of_many{a, b = 1} -> c", "of_many")
  _G.long = define("spec.long", "long(" .. ("x"):rep(200) .. ")\nDoes nothing.", function() end)
  expect_text("{\n  function spec.long(" .. ("x"):rep(55) .. "...\n}", "{ long }")
  expect_text("{ [function built in] = 1 }", "{ [print] = 1 }")
  expect_text("torch.Size([2, 3])", "torch.zeros{2, 3}.shape")
  answer "deployer = redco.Deployer { seed = 1, verbose = false }"
  assert(answer("deployer").text:find "^Deployer {seed = %d+, .*}\n  :alone :gen_rng ",
    answer("deployer").text)
  expect_text("{ Deployer }", "{ deployer }")
  expect_text("{ mine }", "{ setmetatable({}, { __tostring = function() return 'mine' end }) }")
  expect_message("stdin:1: no text",
    "setmetatable({}, { __tostring = function() error 'no text' end })")
end)

test("who lists the user's globals", function()
  for name in ("\n" .. answer("who()").text):gmatch "\n(%S+)" do _G[name] = nil end
  expect_text("no globals of yours yet: x = 1 makes one", "who()")
  answer "w = torch.zeros({10, 100}, { dtype = 'float64' })"
  answer "tree = { w = w, more = { w, w:float() }, 5 }"
  answer "function f(a, b) end name = 'a name'"
  expect_text(table.concat({
    "f     function  (a, b) stdin:1",
    'name  string    "a name"',
    "tree  table     3 entries, 3 tensors, 20.0 kB",
    "w     Tensor    float64 [10, 100]  8.0 kB",
  }, "\n"), "who()")
end)

test("? finds values, names, and methods of a value's class", function()
  assert(answer("?redco.nn.linear").text:find "linear%(")
  assert(answer("? torch.matmul ").text:find "matmul%(")
  answer "some = torch.ones{2}"
  assert(answer("?some:sum").text:find "sum%(")
  assert(answer("?some:item").text:find "item%(")
  assert(answer("?").text:find "?NAME", 1, true)
  expect_message("there is no help for 'nothing.zzqqzz'", "?nothing.zzqqzz")
end)

test("names are completed: globals, fields, methods, operators", function()
  answer "x = torch.ones{2} params = { wte = { weight = x, ['not a name'] = 1 } }"
  expect_equal(completed("tor", "tor"), "torch")
  expect_equal(completed("print(tor", "tor"), "torch")
  expect_equal(completed("whi", "whi"), "while")
  expect_equal(completed("y = torch.matm", "matm"), "matmul matmul_backward")
  expect_equal(completed("redco.optim.adam", "adam"), "adam adamw adamw8bit")
  expect_equal(completed("params.wte.w", "w"), "weight")
  expect_equal(completed("params.wte.weight:to", "to"),
    "to to_dense to_local to_mkldnn to_padded_tensor to_sparse to_sparse_bsc to_sparse_bsr "
      .. "to_sparse_csc to_sparse_csr tolist topk")
  expect_equal(completed("x:su", "su"), "sub sub_ subtract subtract_ sum sum_to_size")
  expect_equal(completed("x.sha", "sha"), "shape")
  expect_equal(completed("x:float():mea", "mea"), "mean")
  expect_equal(completed("?torch.mat", "mat"):match "^%w+", "matmul")
  expect_equal(completed("deployer:log_in", "log_in"), "")
  answer "deployer = redco.Deployer { seed = 1, verbose = false }"
  expect_equal(completed("deployer:log_in", "log_in"), "log_info")
  expect_equal(completed("string.re", "re"), "rep reverse")
  expect_equal(completed("io.stdout:fl", "fl"), "flush")
  expect_equal(completed("1.", "1."), "")
  expect_equal(completed("nothing.at.all", "all"), "")
  expect_equal(completed("torch._weight_n", "_weight_n"),
    "_weight_norm _weight_norm_differentiable_backward _weight_norm_interface "
      .. "_weight_norm_interface_backward")
  assert(not (" " .. completed("torch.", "")):find " _", "private names unasked")
end)

test("keys of named arguments are completed inside of a call's last table", function()
  expect_equal(completed("redco.optim.adamw{ learn", "learn"), "learning_rate = ")
  expect_equal(completed("redco.optim.adamw({ eps = 1, wei", "wei"), "weight_decay = ")
  expect_equal(completed("x:sum({0}, { keep", "keep"), "keepdim = ")
  expect_equal(completed("f(redco.optim.adamw{ mas", "mas"), "mask = ")
  expect_equal(completed("redco.optim.adamw{ eps = learn", "learn"), "")
  expect_equal(completed("redco.optim.adamw{ eps = 'a}', learn", "learn"), "learning_rate = ")
  session:feed "redco.optim.adamw {"
  expect_equal(completed("  learn", "learn"), "learning_rate = ")
  session:forget()
end)

test("keys, modules and files are completed in strings, comments are left alone", function()
  answer "params = { ['h.0.attn.weight'] = 1, ['h.0.mlp.weight'] = 2, lm_head = 3 }"
  expect_equal(completed('x = params["h.0.', "h.0."), "h.0.attn.weight h.0.mlp.weight")
  expect_equal(completed("params['l", "l"), "lm_head")
  assert(completed('require "redco.op', "redco.op"):find "redco.optim")
  assert(completed("require('redco.op", "redco.op"):find "redco.optim")
  local modules = " " .. completed('require "redco.', "redco.") .. " "
  for _, name in ipairs { "redco.data", "redco.nn", "redco.optim", "redco.torch" } do
    assert(modules:find(" " .. name .. " ", 1, true), modules)
  end
  for name in modules:gmatch "%S+" do
    assert(redco_help.text(require(name)), name)
  end
  local start, found, file = session:complete('torch.load("dir/fi', 18)
  expect_equal(start, 13)
  expect_equal(#found, 0)
  expect_equal(file, "dir/fi")
  expect_equal(select(3, session:complete("torch", 5)), nil)
  expect_equal(completed("-- tor", ""), "")
  expect_equal(completed("[[ tor", ""), "")
  expect_equal(completed("'a' .. \"b\" .. tor", "tor"), "torch")
end)

test("to complete runs nothing of the user's", function()
  answer [[
calls = 0
local function called() calls = calls + 1 error "called" end
evil = setmetatable({ own = 1 }, { __index = called, __tostring = called, __call = called,
  __pairs = called, __len = called, __eq = called })
proxy = newproxy(true)
for _, name in ipairs { "__index", "__tostring" } do getmetatable(proxy)[name] = called end]]
  expect_equal(completed("evil.", ""), "own")
  for _, line in ipairs { "evil.a", "evil.a.b", "evil:a", "evil{ a", "proxy.a", "proxy:a" } do
    completed(line, line:match "%w$")
  end
  expect_text("0", "calls")
  answer "proxy = nil"
end)

testing.finish()
