-- The texts can be read, and what is generated from them is complete, current and sound.
local reachable = require "reachable"
local redco = require "redco"
local reference = require "redco.reference"
local registry = require "redco.registry"
local signature = require "redco.reference.signature"
local surface = require "redco.reference.surface"
local testing = require "testing"
local types = require "redco.reference.types"

local torch = redco.torch
local test, expect_equal = testing.test, testing.expect_equal

local function expect_none(wrong)
  table.sort(wrong)
  assert(#wrong == 0, #wrong .. ":\n" .. table.concat(wrong, "\n"))
end

-- What Lua files of the library share; scripts have no use for it.
local internal = { "^redco%.native", "^redco%.functorch", "^redco%.registry", "^redco%.repl",
  "^spec%.", "^Weights", "^GgufFile", "^GgufWriter", "^ByteFile", "^RecordFile", "^TokenFile",
  "^ParquetFile", "^FitEvent", "^HttpServer", "^HttpRequest", "^StopListener", "^TokenTexts",
  "^TokenGrammar", "^CapturedFunction", "^Calls", "^HttpClient", "^WaitingLock" }

local function is_internal(name)
  for _, pattern in ipairs(internal) do
    if name:find(pattern) then return true end
  end
end

test("a signature is read with its arguments, types, defaults and results", function()
  local read = signature.read [[
f(self, x [rows, columns], name: string or nil, "a", {list = {1, "},"}, eps = 1e-5,
  on: boolean}, ...) -> loss, count
First, of
two lines.

Second.
  name, eps: what
    they are
  on: whether]]
  expect_equal(read.kind, "function")
  expect_equal(read.name, "f")
  expect_equal(table.concat(read.results, ";"), "loss;count")
  expect_equal(table.concat(read.paragraphs, ";"), "First, of\ntwo lines.;Second.")
  local function argument(i) return read.arguments[i] end
  expect_equal(argument(1).name, "self")
  expect_equal(argument(2).shape, "[rows, columns]")
  expect_equal(argument(3).type, "string or nil")
  expect_equal(argument(3).text, "what they are")
  expect_equal(argument(5).name, "list")
  expect_equal(argument(5).default, '{1, "},"}')
  expect_equal(argument(5).is_named, true)
  expect_equal(argument(6).default, "1e-5")
  expect_equal(argument(6).text, "what they are")
  expect_equal(argument(7).type, "boolean")
  expect_equal(argument(8).name, "...")
  expect_equal(signature.short(read), 'f(self, x, name, "a", ..., {...}) -> loss, count')
end)

test("signatures of classes, properties, modules and lists", function()
  local class = signature.read "Thing {size: integer, name}\nIt is.\n  name: what it is called"
  expect_equal(class.kind, "class")
  expect_equal(class.arguments[2].text, "what it is called")
  expect_equal(signature.read("size: integer or nil\nHow many.").type, "integer or nil")
  expect_equal(signature.read("redco.thing\nThings.").kind, "module")
  expect_equal(signature.read("chain{first, second, ...} -> Optimizer\nAll.").is_list, true)
  local returned = signature.read("f(g) -> function(a, b) -> c, d\nAll.").results
  expect_equal(#returned, 1)
end)

test("every argument, field and result has a type that is known", function()
  local wrong = {}
  for _, full_name in ipairs(registry.names()) do
    if not is_internal(full_name) then
      local read = surface.read(full_name)
      for _, argument in ipairs(read.arguments) do
        local words = types.of_argument(argument)
        if argument.name ~= "self" and argument.name ~= "..."
          and not (words and types.annotation(words)) then
          wrong[#wrong + 1] = ("%s: %s: %s"):format(full_name, argument.name, tostring(words))
        end
      end
      for _, words in ipairs(read.type and { read.type } or read.results) do
        if not types.annotation(words, "self") then
          wrong[#wrong + 1] = ("%s -> %s"):format(full_name, words)
        end
      end
    end
  end
  expect_none(wrong)
end)

test("what a text describes is in its signature", function()
  local wrong = {}
  for _, full_name in ipairs(registry.names()) do
    local read = surface.read(full_name)
    local names = {}
    for _, argument in ipairs(read.arguments) do names[argument.name] = true end
    for _, item in ipairs(read.described) do
      for _, name in ipairs(signature.split(item.names)) do
        if not names[name] then wrong[#wrong + 1] = full_name .. ": " .. name end
      end
    end
  end
  expect_none(wrong)
end)

-- Calls a function without arguments; returns the message of its error.
local function message_without_arguments(full_name, objects)
  local class, method = full_name:match "^(%w+):([%w_]+)$"
  local ok, message
  if class then
    ok, message = pcall(objects[class][method], objects[class], {})
  else
    local f = redco
    for part in full_name:gsub("^redco%.", ""):gmatch "[^.]+" do f = f[part] end
    ok, message = pcall(f, {})
  end
  assert(not ok, full_name .. " needs no arguments")
  return tostring(message)
end

test("named arguments without a default are required", function()
  local objects = { Deployer = redco.Deployer { seed = 1, verbose = false } }
  objects.Trainer = redco.Trainer {
    deployer = objects.Deployer, params = { w = torch.zeros { 1 } }, loss_fn = print,
    optimizer = redco.optim.sgd { learning_rate = 0.1 }, collate_fn = print,
  }
  objects.Predictor = objects.Trainer:get_default_predictor { pred_fn = print }
  local wrong, n = {}, 0
  for _, full_name in ipairs(registry.names()) do
    local read, first = surface.page(full_name) and surface.read(full_name), nil
    local is_called = read and not read.is_list
      and (read.is_braced or objects[full_name:match "^(%w+):" or ""])
    for _, argument in ipairs(is_called and read.arguments or {}) do
      if not argument.is_named and argument.name ~= "self" then break end
      if argument.is_named and not argument.default then first = first or argument.name end
    end
    if first then
      n = n + 1
      local message = message_without_arguments(full_name, objects)
      if not message:find(first, 1, true) then wrong[#wrong + 1] = full_name .. ": " .. message end
    end
  end
  assert(n > 20, n)
  expect_none(wrong)
end)

test("every module and class is on a page, or internal", function()
  local wrong = {}
  for _, full_name in ipairs(registry.names()) do
    if not surface.page(full_name) and not is_internal(full_name) then
      wrong[#wrong + 1] = full_name
    end
  end
  expect_none(wrong)
end)

test("every table of functions in a module has a text", function()
  local wrong = {}
  for name, module in pairs(surface.modules()) do
    for key, value in pairs(module) do
      if type(value) == "table" and not registry.text(value) then
        wrong[#wrong + 1] = name .. "." .. key
      end
    end
  end
  expect_none(wrong)
end)

test("objects have the name of their class, which has a text", function()
  for class in pairs(reachable.n_methods) do
    assert(types.classes[class] and surface.read(class).kind == "class", class)
  end
end)

local stubs = reference.files "stubs"

test("stubs are Lua, and of a size that the language server reads", function()
  local total = 0
  for path, text in pairs(stubs) do
    assert(loadstring(text, "=" .. path))
    assert(text:find "^%-%-%-@meta ", path)
    assert(#text < 500e3, ("%s has %d bytes"):format(path, #text))
    total = total + #text
  end
  assert(total < 1.5e6, "all together have " .. total .. " bytes")
end)

-- The declarations of all files: the lines of comment before each, by the text that declares.
local function declarations()
  local found = {}
  for _, text in pairs(stubs) do
    local comments = {}
    for line in text:gmatch "[^\n]*" do
      if line:find "^%-%-%-" then
        comments[#comments + 1] = line
      elseif line ~= "" then
        found[#found + 1] = { line = line, comments = table.concat(comments, "\n") .. "\n" }
        comments = {}
      end
    end
  end
  return found
end

test("every parameter in a stub has a type, and nothing else has", function()
  local wrong, n = {}, 0
  for _, declared in ipairs(declarations()) do
    local names = declared.line:match "^function [%w_.:]+%((.*)%) end$"
    local expected = {}
    for _, name in ipairs(signature.split(names or "")) do expected[name] = true end
    for name, type in declared.comments:gmatch "%-%-%-@param ([%w_.]+)%?? (%S+)" do
      if not expected[name] or type == "" then wrong[#wrong + 1] = declared.line .. ": " .. name end
      expected[name] = nil
      n = n + 1
    end
    for name in pairs(expected) do wrong[#wrong + 1] = declared.line .. ": " .. name end
  end
  assert(n > 200, n)
  expect_none(wrong)
end)

test("every type that stubs name is declared in one of them", function()
  local declared, wrong = {}, {}
  for _, text in pairs(stubs) do
    for name in text:gmatch "%-%-%-@class ([^\n]+)" do
      declared[name:gsub("^%(exact%) ", "")] = true
    end
  end
  for path, text in pairs(stubs) do
    for line in text:gmatch "[^\n]+" do
      local named = line:match "^%-%-%-@param %S+ (%S+)" or line:match "^%-%-%-@field %S+ (%S+)"
        or line:match "^%-%-%-@return (%S+)" or ""
      for name in named:gmatch "[%a][%w_]*%.[%w_.]+" do
        if not declared[name] and name ~= "ffi.cdata" then
          wrong[#wrong + 1] = path .. ": " .. name
        end
      end
    end
  end
  expect_none(wrong)
end)

test("every function that a script can reach is in a stub", function()
  local known, wrong = {}, {}
  for _, declared in ipairs(declarations()) do
    local name = declared.line:match "^function ([%w_.:]+)%("
      or declared.line:gsub('%["([%w_]+)"%]', ".%1"):match "^([%w_.]+) ="
    if name then known[name:gsub(":", ".")] = true end
  end
  for _, entry in ipairs(reachable) do
    local _, full_name = registry.text(entry.value)
    if type(full_name) ~= "string" then full_name = entry.place:gsub("^redco%.torch", "torch") end
    local variable = surface.owner(full_name)
    variable = variable:match "[^.]+$" .. (full_name:find "^redco%.Tokenizer" and "Static" or "")
    local name = variable .. "." .. full_name:match "[^.:]+$"
    -- Properties and what calling an object does are fields and overloads.
    local read = surface.read(full_name)
    if not known[name] and not (read and read.kind ~= "function") then
      wrong[#wrong + 1] = ("%s (%s)"):format(entry.place, name)
    end
  end
  for _, name in ipairs(torch.operators()) do
    if not known["torch." .. name] then wrong[#wrong + 1] = "torch." .. name end
  end
  expect_none(wrong)
end)

local folder = os.getenv "REDCO_SOURCE" .. "/docs/reference/"
local pages = reference.files "pages"

test("the pages in docs/reference are current", function()
  local remedy = "; run cmake --build build/release --target reference"
  for path, text in pairs(pages) do
    local file = assert(io.open(folder .. path, "rb"), folder .. path .. " is missing" .. remedy)
    assert(file:read "*a" == text, folder .. path .. " is not what the texts say" .. remedy)
    file:close()
  end
  local list = assert(io.popen("ls '" .. folder .. "'"))
  for name in list:lines() do assert(pages[name], folder .. name .. " belongs to no module") end
  list:close()
end)

test("every link leads to a page and a heading of it", function()
  local headings, wrong, n = {}, {}, 0
  for path, text in pairs(pages) do
    local uses = {}
    for heading in text:gmatch "\n#+ ([^\n]+)" do
      local slug = heading:lower():gsub("[^%w_-]", "")
      local again = uses[slug]
      uses[slug] = (again or 0) + 1
      headings[path .. "#" .. slug .. (again and "-" .. again or "")] = true
    end
    headings[path] = true
  end
  for path, text in pairs(pages) do
    for target in text:gmatch "%]%(([^)]*)%)" do
      n = n + 1
      if not target:find "^https:" and not headings[target] then
        wrong[#wrong + 1] = path .. ": " .. target
      end
    end
  end
  assert(n > 200, n)
  expect_none(wrong)
end)

test("every public function has its heading on a page", function()
  local wrong = {}
  for _, full_name in ipairs(registry.names()) do
    local page = surface.page(full_name)
    if page and full_name ~= page
      and not pages[page .. ".md"]:find("\n##+ " .. full_name:gsub("%p", "%%%0") .. "\n") then
      wrong[#wrong + 1] = full_name
    end
  end
  expect_none(wrong)
end)

test("neighbours with one text share a row", function()
  local trainer = pages["Trainer.md"]
  assert(trainer:find("| `on_step`, `on_eval`, `on_epoch`, `on_save` | function | hooks", 1, true))
  local seen = {}
  for path, text in pairs(pages) do
    local last
    if path == "families.md" then text = "" end -- its rows are models
    for line in text:gmatch "[^\n]+" do
      local cell = line:match "^| `.*| ([^|]*) |$"
      if cell and cell:find "%S" and cell == last then seen[#seen + 1] = path .. ": " .. cell end
      last = cell
    end
  end
  expect_none(seen)
end)

testing.finish()
