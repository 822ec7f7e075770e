-- redco.options: defaults, config.toml and the command line, as a script's user meets them.
local program = require "program"
local testing = require "testing"

local test, expect_equal = testing.test, testing.expect_equal
local run, write = program.run, program.write

local script = write("script.lua", [[
local redco = require "redco"
local o = redco.options {
  name = "none", rate = 0.1, n_epochs = 3, shuffle = true, quiet = false, sizes = { 1, 2 },
  tags = { "a" }, workdir = "", model = { n_layer = 2, kind = "cnn", inner = { deep = 1.5 } },
  no_cache = false,
}
local function text(value)
  if type(value) ~= "table" then return tostring(value) end
  local parts, paths, leaves = {}, redco.tree.paths(value), redco.tree.leaves(value)
  for i, path in ipairs(paths) do parts[i] = path .. "=" .. tostring(leaves[i]) end
  return table.concat(parts, " ")
end
print(text(o))
]])

local defaults = "model.inner.deep=1.5 model.kind=cnn model.n_layer=2 n_epochs=3 name=none "
  .. "no_cache=false quiet=false rate=0.1 shuffle=true sizes.1=1 sizes.2=2 tags.1=a workdir="

--- The line for the defaults with some of them changed.
local function changed(changes)
  local line = defaults
  for key, value in pairs(changes) do
    local first, last = (" " .. line .. " "):find((" %s=[^ ]* "):format((key:gsub("%.", "%%."))))
    line = line:sub(1, assert(first, key) - 1) .. key .. "=" .. value .. line:sub(last - 1)
  end
  return line
end

--- Returns what the script prints with these arguments, or nil and its error. In this process:
--- starting the program for each case would take most of the time.
local function printed(args)
  local own, line = arg, nil
  rawset(_G, "arg", { [0] = script, unpack(args) })
  local chunk = setfenv(assert(loadfile(script)),
    setmetatable({ print = function(text) line = text end }, { __index = _G }))
  local ok, message = pcall(chunk)
  rawset(_G, "arg", own)
  if ok then return line end
  return nil, tostring(message)
end

local function expect_out(args, expected)
  local line, err = printed(args)
  if not line then error(err, 2) end
  expect_equal(line, expected)
end

local function expect_misuse(args, ...)
  local line, err = printed(args)
  assert(not line, line)
  for _, part in ipairs { ... } do
    assert(err:find(part, 1, true), ("expected %q in: %s"):format(part, err))
  end
  return err
end

test("the program gives a script its arguments, and ends with 2 if they are wrong", function()
  local code, out, err = run { script, "--name=a b=c", "--n_epochs=7" }
  expect_equal(err, "")
  expect_equal(code, 0)
  expect_equal(out, changed { name = "a b=c", n_epochs = "7" } .. "\n")
  code, out, err = run { script, "--n_epoch=5" }
  expect_equal(code, 2)
  expect_equal(out, "")
  program.expect_has(err, "did you mean 'n_epochs'?")
end)

test("without arguments the defaults", function() expect_out({}, defaults) end)

test("each kind of value", function()
  expect_out({ "--name=a b=c", "--rate=1e-3", "--n_epochs=7", "--shuffle=false", "--quiet=true" },
    changed { name = "a b=c", rate = "0.001", n_epochs = "7", shuffle = "false", quiet = "true" })
  expect_out({ "--name=" }, changed { name = "" })
  expect_out({ "--name=5" }, changed { name = "5" })
  expect_out({ "--rate=2" }, changed { rate = "2" })
  expect_out({ "--n_epochs=-4" }, changed { n_epochs = "-4" })
end)

test("lists", function()
  local code, out = run { script, "--sizes=5,6,7", "--tags=x,y" }
  expect_equal(code, 0)
  assert(out:find("sizes.1=5 sizes.2=6 sizes.3=7", 1, true) and out:find("tags.1=x tags.2=y", 1,
    true), out)
  expect_misuse({ "--sizes=5,x" }, "--sizes=5,x", "a list")
end)

test("flags without a value, and with no-", function()
  expect_out({ "--quiet", "--no-shuffle" }, changed { quiet = "true", shuffle = "false" })
  expect_out({ "--no_shuffle" }, changed { shuffle = "false" })
  -- An option whose own name starts with no_.
  expect_out({ "--no-cache" }, changed { no_cache = "true" })
  expect_misuse({ "--n_epochs" }, "--n_epochs", "a number")
  expect_misuse({ "--no-n-epochs" }, "no-n-epochs")
end)

test("hyphen and underscore are the same, the last of two wins", function()
  expect_out({ "--n-epochs=9" }, changed { n_epochs = "9" })
  expect_out({ "--n_epochs=9", "--n-epochs=8" }, changed { n_epochs = "8" })
  expect_out({ "--model.n-layer=9" }, changed { ["model.n_layer"] = "9" })
end)

test("tables by dots", function()
  expect_out({ "--model.kind=mlp", "--model.inner.deep=4" },
    changed { ["model.kind"] = "mlp", ["model.inner.deep"] = "4" })
  expect_misuse({ "--model.kidn=x" }, "kidn", "did you mean 'kind'?")
  expect_misuse({ "--modle.kind=x" }, "modle", "did you mean 'model'?")
  expect_misuse({ "--name.kind=x" }, "'name' is not a table")
  expect_misuse({ "--model=5" }, "--model=5")
end)

test("unknown options are refused with 2, the nearest name and the script's line", function()
  local err = expect_misuse({ "--n_epoch=5" }, "n_epoch", "did you mean 'n_epochs'?")
  assert(err:find("script.lua:2:", 1, true), err)
  expect_misuse({ "--zzzzzzzz=5" }, "zzzzzzzz", "there are:", "n_epochs", "workdir")
  expect_misuse({ "--zzzzzzzz" }, "zzzzzzzz")
end)

test("--help lists the options, and options of the program are not the script's", function()
  local code, out, err = run { script, "--n-epochs=5", "--help" }
  expect_equal(code, 0)
  expect_equal(err, "")
  program.expect_has(out, "written --name=value", "\nn_epochs = 5\n",
    "[model]\nkind = 'cnn'\nn_layer = 2\n")
  assert(not out:find("redco-lua", 1, true), out)
  expect_misuse({ "--nproc", "2" }, "there is no option 'nproc'",
    "Options of redco-lua itself precede the script's name")
end)

test("--help has the comments beside the options, once in several processes", function()
  local described = write("described.lua", [[
local redco = require "redco"
local o = redco.options {
  rate = 0.1,  -- peak learning rate
  text = "a -- b", n = 1,
  model = {  -- its sizes
    n_layer = 2,  --layers = blocks
  },
  seed = 1,
}
local other = { seed = 2,  -- not an option
}
]])
  for _, flags in ipairs { {}, { "--nproc", "2" } } do
    local args = { unpack(flags) }
    args[#args + 1], args[#args + 2] = described, "--help"
    local code, out = run(args)
    expect_equal(code, 0)
    program.expect_has(out, "rate = 0.1  # peak learning rate\n", "seed = 1\n",
      "n_layer = 2  # layers = blocks\n")
    expect_equal(select(2, out:gsub("peak learning rate", "")), 1)
  end
end)

test("wrong values and arguments that are none are refused with 2", function()
  expect_misuse({ "--n_epochs=many" }, "--n_epochs=many", "a number")
  expect_misuse({ "--n_epochs=" }, "--n_epochs=", "a number")
  expect_misuse({ "--rate=1e" }, "--rate=1e", "a number")
  expect_misuse({ "--rate=0.1x" }, "--rate=0.1x", "a number")
  expect_misuse({ "--quiet=yes" }, "--quiet=yes", "true or false")
  expect_misuse({ "name=x" }, "unexpected argument 'name=x'", "--name=value")
  expect_misuse({ "-n" }, "unexpected argument '-n'")
  expect_misuse({ "--" }, "unexpected argument '--'")
  expect_misuse({ "" }, "unexpected argument ''")
end)

test("a number may have a fraction where the default has none: Lua's are of one type", function()
  expect_out({ "--n_epochs=2.5" }, changed { n_epochs = "2.5" })
end)

test("--config= names a file, its values come before the arguments", function()
  local file = write("other.toml", [[
name = "of-the-file"
n-epochs = 11
rate = 3
sizes = [4, 5]
[model]
kind = "mlp"
[model.inner]
deep = 0.5
]])
  local expected = changed { name = "of-the-file", n_epochs = "11", rate = "4", ["sizes.1"] = "4",
    ["sizes.2"] = "5", ["model.kind"] = "mlp", ["model.inner.deep"] = "0.5" }
  expect_out({ "--config=" .. file, "--rate=4" }, expected)
  expect_out({ "--rate=4", "--config=" .. file }, expected)
end)

test("a wrong file is refused with 2, its name and line", function()
  local function wrong(text, ...)
    expect_misuse({ "--config=" .. write("wrong.toml", text) }, "wrong.toml", ...)
  end
  wrong("name = \"x\"\nn_epoch = 5\n", "wrong.toml:2", "n_epoch", "did you mean 'n_epochs'?")
  wrong("\nn_epochs = \"many\"\n", "wrong.toml:2", "n_epochs", "a number")
  wrong("name = \n", "wrong.toml:1", "not TOML")
  wrong("model = 5\n", "wrong.toml:1", "model", "a table")
  expect_misuse({ "--config=nowhere.toml" }, "nowhere.toml")
end)

test("config.toml beside the script is read, script.toml or --config= replaces it", function()
  local folder = program.folder .. "/beside"
  assert(os.execute(("mkdir -p '%s' && cp '%s' '%s'"):format(folder, script, folder)) == 0)
  write("beside/config.toml", "name = \"beside\"\nquiet = true\n")
  local code, out = run { folder .. "/script.lua", "--rate=5" }
  expect_equal(code, 0)
  expect_equal(out, changed { name = "beside", quiet = "true", rate = "5" } .. "\n")
  local other = write("empty.toml", "n_epochs = 1\n")
  code, out = run { folder .. "/script.lua", "--config=" .. other }
  expect_equal(code, 0)
  expect_equal(out, changed { n_epochs = "1" } .. "\n")
  write("beside/script.toml", "name = \"own\"\n")
  code, out = run { folder .. "/script.lua", "--rate=5" }
  expect_equal(code, 0)
  expect_equal(out, changed { name = "own", rate = "5" } .. "\n")
end)

test("what was resolved is written to the workdir, and reads back as the same", function()
  local workdir = program.folder .. "/made/here"
  local args = { "--workdir=" .. workdir, "--name=a \"b\"\\c", "--rate=0.1", "--sizes=3",
    "--model.inner.deep=1e-7" }
  local code, out, err = run { script, unpack(args) }
  assert(code == 0, err)
  local code_again, again = run { script, "--config=" .. workdir .. "/config.toml" }
  expect_equal(code_again, 0)
  expect_equal(again, out)
  assert(program.read(workdir .. "/config.toml"):find("rate = 0.1\n", 1, true))
end)

test("a workdir that cannot be made is an error that names it", function()
  local code, _, err = run { script, "--workdir=" .. script .. "/inside" }
  assert(code == 1 or code == 2, "exit code " .. code)
  assert(err:find("script.lua/inside", 1, true), err)
end)

test("pcall around a misuse leaves the script to decide", function()
  local path = write("decides.lua", [[
local redco = require "redco"
local ok, message = pcall(redco.options, { a = 1 })
print(ok, message)
]])
  local code, out = run { path, "--b=5" }
  expect_equal(code, 0)
  assert(out:find("there is no option 'b'", 1, true), out)
end)

test("defaults that are no options are errors of the script", function()
  local function wrong(text, ...)
    local code, _, err = run { write("wrong.lua", "local redco = require 'redco'\n" .. text) }
    expect_equal(code, 1)
    for _, part in ipairs { "wrong.lua:2:", ... } do
      assert(err:find(part, 1, true), ("expected %q in: %s"):format(part, err))
    end
  end
  wrong("redco.options()", "a table of defaults")
  wrong("redco.options(5)", "a table of defaults", "5")
  wrong("redco.options { f = print }", "function")
end)

test("-e has no script: its options are the defaults", function()
  local code, out = run { "-e", "print(require('redco').options { a = 5 }.a)" }
  expect_equal(code, 0)
  expect_equal(out, "5\n")
end)

program.remove_folder()
testing.finish()
