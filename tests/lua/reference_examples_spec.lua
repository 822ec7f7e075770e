-- Examples of the reference run and print what they show; entries with arguments have one.
local examples = require "redco.reference.examples"
local ffi = require "ffi"
local registry = require "redco.registry"
local shown = require "shown"
local surface = require "redco.reference.surface"
local testing = require "testing"

local test = testing.test
local source = os.getenv "REDCO_SOURCE"

ffi.cdef "int chdir(const char *path);"

-- What the folder of an example has: folders of models with random weights, and data.
local fixture = {
  ["tests/cases/gpt2"] = "gpt2",
}

local n_folders = 0

-- Makes a folder with the fixture and enters it.
local function enter_folder()
  n_folders = n_folders + 1
  local folder = ("%s/%d"):format(testing.folder(), n_folders)
  local commands = { ("mkdir '%s' && cd '%s'"):format(folder, folder) }
  for path, name in pairs(fixture) do
    commands[#commands + 1] = ("cp -r '%s/%s' '%s'"):format(source, path, name)
  end
  assert(os.execute(table.concat(commands, " && ")) == 0)
  assert(ffi.C.chdir(folder) == 0)
end

-- Runs a script in such a folder and returns what it prints.
local function output_of(script, full_name)
  local lines, print_before = {}, print
  rawset(_G, "print", function(...)
    local words = {}
    for i = 1, select("#", ...) do words[i] = tostring((select(i, ...))) end
    lines[#lines + 1] = table.concat(words, "\t")
  end)
  enter_folder()
  local ok, message = xpcall(assert(loadstring(script, "=" .. full_name)), debug.traceback)
  rawset(_G, "print", print_before)
  collectgarbage()
  if not ok then error(message, 0) end
  return table.concat(lines, "\n")
end

for _, page in ipairs(surface.pages) do
  local names = {}
  for full_name in pairs(examples.of_page(page[1])) do names[#names + 1] = full_name end
  table.sort(names)
  for _, full_name in ipairs(names) do
    test("the example of " .. full_name, function()
      assert(registry.text(full_name) and surface.page(full_name) == page[1],
        "the page " .. page[1] .. " has no such entry")
      local example = examples.of(full_name)
      local _, n_lines = example.code:gsub("[^\n]+", "")
      assert(n_lines >= 1 and n_lines <= 12, "it has " .. n_lines .. " lines")
      for line in example.code:gmatch "[^\n]+" do
        assert(#line <= 78, "help has no room for the line: " .. line)
      end
      local script = examples.script(full_name)
      local output, text = output_of(script, full_name), shown.by(script)
      if text then shown.expect(output, text) end
    end)
  end
end

assert(ffi.C.chdir "/" == 0)
testing.finish()
